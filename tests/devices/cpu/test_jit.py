"""Text in, machine code out: full vector width, clear errors, relocatable objects, freed memory."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from pyfuser.devices.cpu import jit
from pyfuser.devices.cpu.host import host
from pyfuser.errors import CompilationError, InternalError
from tests.support.folders import ROOT


def adder(amount: int, name: str = "add") -> str:
    return f"define i64 @{name}(i64 %x) {{\n  %y = add i64 %x, {amount}\n  ret i64 %y\n}}\n"


def call(module: jit.CompiledModule, name: str, argument: int) -> int:
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(module.address(name))
    return int(function(argument))


def doubling_loop(attributes: str) -> str:
    return f"""
define void @double(ptr %p) #0 {{
  %x = load <16 x float>, ptr %p, align 4
  %y = fadd <16 x float> %x, splat (float 1.0)
  store <16 x float> %y, ptr %p, align 4
  ret void
}}
attributes #0 = {{ {attributes} }}
"""


def test_compiled_function_runs() -> None:
    module = jit.compile_module(adder(3))
    assert call(module, "add", 39) == 42


def test_two_modules_may_define_the_same_name() -> None:
    one, two = jit.compile_module(adder(1)), jit.compile_module(adder(2))
    assert (call(one, "add", 0), call(two, "add", 0)) == (1, 2)


def test_functions_use_the_full_vector_width() -> None:
    text = jit.assembly(doubling_loop(jit.function_attributes()))
    if host().architecture not in ("x86_64", "amd64"):
        assert "fadd" in text
        return
    register = {512: "zmm", 256: "ymm", 128: "xmm"}[host().vector_bits]
    assert register in text
    assert host().lanes(4) == host().vector_bits // 32


def test_constants_need_no_address_computation() -> None:
    """The small code model: a vector constant is a memory operand relative to the code."""
    if host().architecture not in ("x86_64", "amd64"):
        pytest.skip("x86 assembly")
    text = jit.assembly(doubling_loop(jit.function_attributes()))
    assert "(%rip)" in text
    assert "movabs" not in text


def test_libc_and_libm_resolve() -> None:
    module = jit.compile_module(
        "declare double @fmod(double, double)\n"
        "declare ptr @memset(ptr, i32, i64)\n"
        "define double @rest(double %x, double %y) {\n"
        "  %r = call double @fmod(double %x, double %y)\n  ret double %r\n}\n"
    )
    number = ctypes.c_double
    assert ctypes.CFUNCTYPE(number, number, number)(module.address("rest"))(7.5, 2.0) == 1.5


def test_added_symbol_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_external_symbols", dict(jit._external_symbols))
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    triple = prototype(lambda x: 3 * x)
    address = ctypes.cast(triple, ctypes.c_void_p).value
    assert address is not None
    jit.add_symbol("pyfuser_test_triple", address)
    module = jit.compile_module(
        "declare i64 @pyfuser_test_triple(i64)\n"
        "define i64 @f(i64 %x) {\n  %y = call i64 @pyfuser_test_triple(i64 %x)\n  ret i64 %y\n}\n"
    )
    assert call(module, "f", 14) == 42


def test_object_runs_in_another_process() -> None:
    """No address of this process is in the object: another one links and runs it."""
    text = doubling_loop(jit.function_attributes()) + adder(5)
    code = jit.compile_module(text + "declare void @free(ptr)\n").object_code
    script = (
        "import ctypes, sys\n"
        "from pyfuser.devices.cpu import jit\n"
        "module = jit.load_object(sys.stdin.buffer.read())\n"
        "values = (ctypes.c_float * 16)(*range(16))\n"
        "ctypes.CFUNCTYPE(None, ctypes.c_void_p)(module.address('double'))(values)\n"
        "add = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(module.address('add'))\n"
        "print(sum(values), add(37))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], input=code, capture_output=True, cwd=ROOT, check=True
    )
    assert run.stdout.split() == [b"136.0", b"42"]


def test_object_cache_is_asked_first_and_survives_a_bad_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Dictionary(dict[str, bytes]):
        load = dict.get
        store = dict.__setitem__

    cache = Dictionary()
    monkeypatch.setattr(jit, "_object_cache", None)
    jit.set_object_cache(cache)
    assert call(jit.compile_module(adder(7)), "add", 0) == 7
    (key,) = cache
    assert host().cpu_name in key and jit.versions() in key
    cache[key] = jit.compile_module(adder(8)).object_code
    assert call(jit.compile_module(adder(7)), "add", 0) == 8  # the stored object, not the text's
    cache[key] = b"not an object"
    assert call(jit.compile_module(adder(7)), "add", 0) == 7
    assert cache[key] != b"not an object"


def test_syntax_error_has_the_message_of_llvm() -> None:
    with pytest.raises(CompilationError, match=r"(?s)compile_module: expected .*%y"):
        jit.compile_module("define i32 @f() {\n  ret i32 %y\n}\n")


def test_unknown_external_function_is_named() -> None:
    with pytest.raises(CompilationError, match=r"link: expected .*, got @no_such_function"):
        jit.compile_module(
            "declare void @no_such_function()\n"
            "define void @f() {\n  call void @no_such_function()\n  ret void\n}\n"
        )


def test_unknown_symbol_of_a_module() -> None:
    module = jit.compile_module(adder(1))
    with pytest.raises(CompilationError, match=r"link: expected a module that defines @missing"):
        module.address("missing")


def test_foreign_object() -> None:
    with pytest.raises(CompilationError, match=r"load_object: expected an object file"):
        jit.load_object(b"these bytes are no object file").address("f")


def test_unknown_pass() -> None:
    with pytest.raises(InternalError, match=r"expected a pass that llvmlite has, got magic"):
        jit.compile_module(adder(1), passes=("magic",))


def test_passes_are_run() -> None:
    text = "define i64 @f() {\n  %p = alloca i64\n  store i64 42, ptr %p\n"
    text += "  %x = load i64, ptr %p\n  ret i64 %x\n}\n"
    module = jit._optimised(jit._request(text, jit.DEFAULT_PASSES, 1, None))
    assert "alloca" not in str(module)
    assert "alloca" in str(jit._optimised(jit._request(text, (), 1, None)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_code_of_dropped_modules_is_unmapped() -> None:
    def executable_mappings() -> int:
        gc.collect()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum(" r-xp 00000000 00:00 0" in line for line in lines)

    before = executable_mappings()
    modules = [jit.compile_module(adder(i)) for i in range(40)]
    addresses = {module.address("add") for module in modules}
    assert len(addresses) == 40
    del modules
    assert executable_mappings() <= before + 4


def test_eight_threads_compile() -> None:
    results: dict[int, list[int]] = {}

    def work(number: int) -> None:
        modules = [jit.compile_module(adder(number * 100 + i)) for i in range(5)]
        results[number] = [call(module, "add", 0) for module in modules]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [n * 100 + i for i in range(5)] for n in range(8)}


def test_machine_facts_are_plausible() -> None:
    found = host()
    assert found is host()
    assert found.vector_bits in (128, 256, 512)
    assert found.cores >= 1
    assert 8 << 10 <= found.l1_bytes <= found.l2_bytes
    assert found.cache_line_bytes in (32, 64, 128, 256)
    assert not found.has("no-such-feature")


def test_a_linker_goes_with_its_last_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps something of every module that it ever had."""
    monkeypatch.setattr(jit, "_linkers", jit._Linkers(4))
    text = "define i64 @same(i64 %x) { ret i64 %x }"
    code = jit.compile_module(text).object_code
    modules = [jit.load_object(code) for _ in range(11)]
    linkers = [weakref.ref(module._linker) for module in modules]
    assert len(set(map(id, (linker() for linker in linkers)))) == 3
    addresses = [module.address("same") for module in modules]
    del modules[:7]
    gc.collect()
    assert [linker() is None for linker in linkers] == [True] * 7 + [False] * 4
    assert call(modules[0], "same", 5) == call(modules[-1], "same", 5) == 5
    assert addresses[7] == modules[0].address("same")
