"""Everything that depends on the Keras backend.

`keras_ops` has a default for every name, in keras.ops. `tensorflow`, `jax` and `torch` replace
those that are faster or different on that backend, with its private API. `torch_flash` and
`jax_flash` are flash-attention kernels. `keras_private` has the uses of Keras's private API that do
not depend on the backend. Modules of this folder import no other module of the library.
"""

import keras

from t2t_relpos.backend.keras_ops import *  # noqa: F403

NAME = keras.backend.backend()

if NAME == "tensorflow":
    from t2t_relpos.backend.tensorflow import *  # noqa: F403
elif NAME == "jax":
    from t2t_relpos.backend.jax import *  # noqa: F403
elif NAME == "torch":
    from t2t_relpos.backend.torch import *  # noqa: F403
