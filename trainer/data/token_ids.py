"""Ids that mean the same in every vocabulary."""

PAD_ID = 0
EOS_ID = 1
# SentencePiece only: tensor2tensor's subwords spell out every character.
UNK_ID = 2
