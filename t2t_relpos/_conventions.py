"""Ids and a score that models, searches, tokenizers and exports share.

Searches of other models take other ids as arguments.
"""

# The ids of padding and of the end of a sentence, as in vocabularies of tensor2tensor.
PAD_ID = 0
EOS_ID = 1
# Score of an entry without an output. Outputs that end where constraints forbid an end have it too.
# It is finite, because JSON has no infinity.
NO_OUTPUT_SCORE = -1e7
