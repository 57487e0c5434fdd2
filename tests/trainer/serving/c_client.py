"""Runs a SavedModel with TensorFlow's C library, as TensorFlow Serving does.

It does not import TensorFlow's Python package. It reads the model's path and the calls as JSON from
the standard input, and writes the results as JSON: see `main`.
"""

import ctypes
import json
import math
import sys

# TF_DataType -> C type of its values.
NUMBERS = {1: ctypes.c_float, 3: ctypes.c_int32, 10: ctypes.c_bool}
STRING, STRING_BYTES = 7, 24
POINTER, SIZE, INT64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
RETURNS = {
    "TF_NewStatus": POINTER,
    "TF_NewGraph": POINTER,
    "TF_NewSessionOptions": POINTER,
    "TF_Message": ctypes.c_char_p,
    "TF_GetCode": ctypes.c_int,
    "TF_LoadLibrary": POINTER,
    "TF_LoadSessionFromSavedModel": POINTER,
    "TF_GraphOperationByName": POINTER,
    "TF_AllocateTensor": POINTER,
    "TF_TensorData": POINTER,
    "TF_TensorType": ctypes.c_int,
    "TF_NumDims": ctypes.c_int,
    "TF_Dim": INT64,
    "TF_StringGetDataPointer": POINTER,
    "TF_StringGetSize": SIZE,
}


class Output(ctypes.Structure):
    _fields_ = [("operation", POINTER), ("index", ctypes.c_int)]


class Model:
    """A session of a SavedModel. The loader restores the variables and runs the initializer."""

    def __init__(self, library, kernels, path):
        self.tf = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        for name, kind in RETURNS.items():
            getattr(self.tf, name).restype = kind
        for file in kernels:
            self.checked("TF_LoadLibrary", file.encode())
        self.graph = POINTER(self.tf.TF_NewGraph())
        tags = (ctypes.c_char_p * 1)(b"serve")
        options = POINTER(self.tf.TF_NewSessionOptions())
        self.session = POINTER(
            self.checked(
                "TF_LoadSessionFromSavedModel",
                options,
                None,
                path.encode(),
                tags,
                1,
                self.graph,
                None,
            )
        )

    def checked(self, function, *arguments):
        """Calls a function whose last argument is a TF_Status, and raises its error."""
        status = POINTER(self.tf.TF_NewStatus())
        returned = getattr(self.tf, function)(*arguments, status)
        if self.tf.TF_GetCode(status):
            raise RuntimeError(self.tf.TF_Message(status).decode(errors="replace"))
        return returned

    def run(self, inputs, outputs):
        """Returns (shape, flat values) of each output, by name.

        Args:
            inputs: a dict that maps tensor names to (TF_DataType, shape, flat values).
            outputs: names of tensors.
        """
        sources = (Output * len(inputs))(*map(self.endpoint, inputs))
        values = (POINTER * len(inputs))(*(self.tensor(*value) for value in inputs.values()))
        targets = (Output * len(outputs))(*map(self.endpoint, outputs))
        results = (POINTER * len(outputs))()
        fed, fetched = (sources, values, len(inputs)), (targets, results, len(outputs))
        self.checked("TF_SessionRun", self.session, None, *fed, *fetched, None, 0, None)
        return {name: self.content(POINTER(result)) for name, result in zip(outputs, results)}

    def endpoint(self, name):
        operation, index = name.split(":")
        return Output(self.tf.TF_GraphOperationByName(self.graph, operation.encode()), int(index))

    def tensor(self, kind, shape, values):
        size = STRING_BYTES if kind == STRING else ctypes.sizeof(NUMBERS[kind])
        dims = (INT64 * len(shape))(*shape)
        tensor = self.tf.TF_AllocateTensor(kind, dims, len(shape), SIZE(size * len(values)))
        data = self.tf.TF_TensorData(POINTER(tensor))
        if kind != STRING:
            ctypes.memmove(data, (NUMBERS[kind] * len(values))(*values), size * len(values))
            return tensor
        for i, text in enumerate(value.encode("utf-8", "surrogateescape") for value in values):
            place = POINTER(data + STRING_BYTES * i)
            self.tf.TF_StringInit(place)
            self.tf.TF_StringCopy(place, text, SIZE(len(text)))
        return tensor

    def content(self, tensor):
        shape = [self.tf.TF_Dim(tensor, i) for i in range(self.tf.TF_NumDims(tensor))]
        count, kind, data = (
            math.prod(shape),
            self.tf.TF_TensorType(tensor),
            self.tf.TF_TensorData(tensor),
        )
        if kind != STRING:
            return shape, list((NUMBERS[kind] * count).from_address(data)) if count else []
        places = [POINTER(data + STRING_BYTES * i) for i in range(count)]
        texts = [
            ctypes.string_at(self.tf.TF_StringGetDataPointer(p), self.tf.TF_StringGetSize(p))
            for p in places
        ]
        return shape, [text.decode("utf-8", "surrogateescape") for text in texts]


def main():
    task = json.load(sys.stdin)
    model = Model(task["library"], task["kernels"], task["path"])
    answers = []
    for call in task["calls"]:
        try:
            answers.append(model.run(call["inputs"], call["outputs"]))
        except RuntimeError as error:
            answers.append(str(error))
    assert "tensorflow" not in sys.modules
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
