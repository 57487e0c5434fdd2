"""Everything that depends on the Keras backend.

`keras_ops` has a default for every name, in keras.ops. `tensorflow`, `jax` and `torch` replace
those that are faster or different on that backend, with its private API. `torch_flash` and
`jax_flash` are flash-attention kernels. `keras_private` has the uses of Keras's private API that do
not depend on the backend. Modules of this folder import no other module of the library.
"""

import importlib.util

try:
    import keras
except ModuleNotFoundError as error:
    known = "tensorflow", "jax", "torch"
    if error.name not in known:
        raise
    installed = [name for name in known if importlib.util.find_spec(name)]
    # Not the traceback within Keras, which would hide the message.
    raise ImportError(
        f"Expected the package {error.name}, the backend of Keras. Received: an environment "
        f"without it. Install it: pip install 't2t-relpos[{error.name}]'. Or set the environment "
        f"variable KERAS_BACKEND to {' or '.join(installed or known)}.",
        name=error.name,
    ) from None

from t2t_relpos.backend.keras_ops import *  # noqa: F403

NAME = keras.backend.backend()

if NAME == "tensorflow":
    from t2t_relpos.backend.tensorflow import *  # noqa: F403
elif NAME == "jax":
    from t2t_relpos.backend.jax import *  # noqa: F403
elif NAME == "torch":
    from t2t_relpos.backend.torch import *  # noqa: F403
