"""Ids of special tokens, which are the same in every vocabulary."""

PAD_ID = 0
EOS_ID = 1
# SentencePiece only. tensor2tensor's subwords can escape every character.
UNK_ID = 2
