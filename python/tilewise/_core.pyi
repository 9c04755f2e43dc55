from typing import Any

__version__: str

class UnsupportedError(NotImplementedError): ...

class Options:
    def __init__(
        self,
        scale: float,
        softcap: float,
        causal: bool,
        top_left: bool,
        window_left: int,
        window_right: int,
        dropout_p: float,
        seed: int,
        offset: int,
        deterministic: bool,
        batch_invariant: bool,
        threads: int,
        algorithm: str,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> None: ...

class Call:
    def __init__(self, pass_: int, tensors: tuple[Any, ...], options: Options, philox_state: int) -> None: ...
    def workspace(self) -> int: ...
    def run(self, workspace: int, bytes: int, stream: int) -> None: ...
    def prepare(self) -> None: ...
    def explain(self) -> str: ...

def use_exchange_api(capsule: Any) -> bool: ...
def use_threads_of(path: str) -> bool: ...
def merge(tensors: tuple[Any, ...], stream: int) -> None: ...
def info() -> str: ...
