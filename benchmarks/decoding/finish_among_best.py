"""A step function that finishes hypotheses as CTranslate2 does."""

import tensorflow as tf

from trainer.data.tokenizer import EOS_ID, PAD_ID


class FinishAmongBestK:
    """A step function in which only the best k candidates of all beams may finish a hypothesis.

    The probability of EOS in other candidates is moved to padding, which is never chosen, so that
    the probabilities of all other candidates stay the same.

    Args:
        step: the model's step function.
        beam_size: k.
    """

    def __init__(self, step, beam_size):
        self.inner, self.beam_size = step, beam_size

    def start(self, state, vocab_size):
        """Returns the first state: the model's, with scores of hypotheses and candidates."""
        rows = tf.shape(state["position"])[0]
        return {
            "model": state,
            "log_prob": tf.zeros([rows]),
            "candidates": tf.zeros([rows, vocab_size]),
        }

    def step(self, ids, state):
        """Returns the log-probabilities `[rows, V]` after `ids` `[rows]`, and the next state."""
        log_prob = state["log_prob"] + tf.gather(state["candidates"], ids, batch_dims=1)
        # In the first step, all hypotheses but one are copies.
        is_copy = (ids == PAD_ID) & (tf.range(tf.size(ids)) % self.beam_size > 0)
        log_prob = tf.where(is_copy, -1e7, log_prob)
        logits, model_state = self.inner(ids, state["model"])
        candidates = tf.nn.log_softmax(logits)
        vocab_size = candidates.shape[1]
        is_padding = tf.range(vocab_size) == PAD_ID
        totals = tf.where(is_padding, -1e9, candidates + log_prob[:, None])
        best = tf.math.top_k(
            tf.reshape(totals, [-1, self.beam_size * vocab_size]), self.beam_size
        ).values[:, -1]
        may_finish = totals[:, EOS_ID] >= tf.repeat(best, self.beam_size)
        moved = tf.reduce_logsumexp(tf.gather(candidates, [PAD_ID, EOS_ID], axis=1), axis=1)
        pad = tf.where(may_finish, candidates[:, PAD_ID], moved)
        eos = tf.where(may_finish, candidates[:, EOS_ID], -1e9)
        candidates = tf.concat([pad[:, None], eos[:, None], candidates[:, EOS_ID + 1 :]], axis=1)
        return candidates, {"model": model_state, "log_prob": log_prob, "candidates": candidates}
