"""Reads and writes .safetensors without a library: what the tool is tested against."""

import json
import struct

import numpy as np

TYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F64": np.float64,
    "BOOL": np.bool_,
    "I32": np.int32,
    "I64": np.int64,
}


def write(path, tensors, bf16=()):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, array in tensors.items():
        dtype = "BF16" if name in bf16 else next(n for n, t in TYPES.items() if t == array.dtype.type)
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    write_raw(
        path,
        json.dumps(header).encode(),
        b"".join(np.ascontiguousarray(a).tobytes() for a in tensors.values()),
    )


def write_raw(path, header, data=b"", length=None):
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header) if length is None else length) + header + data)


def read(path):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        result[name] = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return result, {name: entry["dtype"] for name, entry in header.items()}
