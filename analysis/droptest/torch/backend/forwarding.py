# SPDX-License-Identifier: Apache-2.0
"""The virtual functions of the installed c10d::Backend, and C++ that forwards them to an inner backend."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Newer names of functions that the backend overrides under their old names, where losses are.
OLD_NAMES = {"all_gather_single": "_allgather_base", "reduce_scatter_single": "_reduce_scatter_base",
             "all_to_all_single": "alltoall_base"}  # fmt: skip

# Functions of some versions that are more than forwarded. A backend that they make loses packets, too, or is refused.
_REFUSED = '{{ TORCH_CHECK(false, "droptest: {name} is not supported under packet loss"); }}'
_BODIES = {
    "split": """{{
    std::vector<std::int32_t> part;
    for (const auto rank : a1) part.push_back(members_.at(static_cast<std::size_t>(rank)));
    const auto made = inner_->split(a0, a1, a2);
    if (!made) return made;
    return c10::make_intrusive<LossyBackend>(made, network_, std::move(part),
                                             agreed_number(*a0, *network_, made->getRank(), made->getSize()));
  }}""",
    "setGroupUid": "{{ Backend::setGroupUid(a0); inner_->setGroupUid(a0); }}",
    "startCoalescing": "{{ is_coalescing_ = true; inner_->startCoalescing(); }}",
    "endCoalescing": "{{ is_coalescing_ = false; return inner_->endCoalescing(); }}",
    "merge": _REFUSED,
    "shrink": _REFUSED,
    "supportsShrinking": "{{ return false; }}",
}

# Of two backends, where no tensor says which.
_OF_BOTH = ("setTimeout", "setSequenceNumberForGroup", "abort", "shutdown")
_OF_HOST = ("monitoredBarrier",)
_OF_TWO = {
    "setGroupUid": "{ Backend::setGroupUid(a0); host_->setGroupUid(a0); cuda_->setGroupUid(a0); }",
    "startCoalescing": "{ start_coalescing(); }",
    "endCoalescing": "{ return end_coalescing(); }",
    # As PyTorch's own groups: NCCL's barrier is for programs that name devices.
    "barrier": "{ return (a0.device_ids.empty() ? host_ : cuda_)->barrier(a0); }",
    # The two would each need options of their own.
    "supportsSplitting": "{ return false; }",
    "split": '{ TORCH_CHECK(false, "droptest: split is for groups with one device; '
    'want new_group or cuda:droptest"); }',
}


class HeaderError(RuntimeError):
    """PyTorch's header is not as expected; the message has the declaration."""


@dataclass(frozen=True)
class Function:
    """A virtual function. types: of the parameters, without names and defaults."""

    name: str
    result: str
    types: tuple[str, ...]
    is_const: bool


def backend_header() -> Path:
    """Backend.hpp of the PyTorch that is imported."""
    from torch.utils.cpp_extension import include_paths

    for folder in include_paths():
        if (header := Path(folder) / "torch/csrc/distributed/c10d/Backend.hpp").is_file():
            return header
    raise HeaderError("Backend.hpp: this PyTorch has no headers of torch.distributed; want one with them")


def virtual_functions(header: str) -> list[Function]:
    """Those that class Backend declares, in order. Raises: HeaderError."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", header, flags=re.DOTALL)
    found = []
    for start in re.finditer(r"\bvirtual\s+", text):
        end = _end_of_parameters(text, start.end())
        declaration = " ".join(text[start.end() : end].split())
        parts = re.fullmatch(r"(.*?)\b(\w+) ?\((.*)\)", declaration)
        if parts is None:
            raise HeaderError(f"Backend.hpp: got `{declaration}`, want a virtual function")
        types = tuple(_type_of(parameter) for parameter in _split(parts[3]))
        found.append(Function(parts[2], parts[1].strip(), types, text[end:].lstrip().startswith("const")))
    return found


def overridden(source: str) -> set[str]:
    """The functions that a class overrides by hand."""
    return set(re.findall(r"\b(\w+)\([^;{}]*\)(?: const)? override", source))


def forwarded(header: str, source: str) -> str:
    """C++ for the functions of the header that the source does not override."""
    lines = []
    for function in virtual_functions(header):
        if function.name in overridden(source):
            continue
        arguments = ", ".join(f"std::forward<{of_type}>(a{i})" for i, of_type in enumerate(function.types))
        old = OLD_NAMES.get(function.name)
        target = f"this->{old}" if old else f"inner_->{function.name}"
        body = _BODIES.get(function.name, "{{ return {target}({arguments}); }}")
        lines.append(f"  {_head(function)} " + body.format(target=target, arguments=arguments, name=function.name))
    return "\n".join(lines) + "\n"


def by_device(header: str) -> str:
    """C++ for the functions of the header: those with tensors go to the backend of the tensors' device, the others to
    that of CUDA, or to those that are listed."""
    lines = []
    for function in virtual_functions(header):
        arguments = ", ".join(f"std::forward<{of_type}>(a{i})" for i, of_type in enumerate(function.types))
        tensors = ", ".join(f"a{i}" for i, of_type in enumerate(function.types) if re.search(r"Tensor[&>]", of_type))
        if function.name in _OF_TWO:
            body = _OF_TWO[function.name]
        elif tensors:
            call = f"of(place)->{function.name}({arguments})"
            result = f"begun(place, {call})" if function.result.endswith("<Work>") else call
            body = f"{{ const Place place = place_of({tensors}); return {result}; }}"
        elif function.name in _OF_BOTH:
            plain = ", ".join(f"a{i}" for i in range(len(function.types)))
            body = f"{{ host_->{function.name}({plain}); cuda_->{function.name}({plain}); }}"
        else:
            owner = "host_" if function.name in _OF_HOST else "cuda_"
            body = f"{{ return {owner}->{function.name}({arguments}); }}"
        lines.append(f"  {_head(function)} {body}")
    return "\n".join(lines) + "\n"


def _head(function: Function) -> str:
    parameters = ", ".join(f"{of_type} a{i}" for i, of_type in enumerate(function.types))
    return f"{function.result} {function.name}({parameters}){' const' if function.is_const else ''} override"


def _end_of_parameters(text: str, begin: int) -> int:
    """After the parenthesis that closes the first one."""
    depth = 0
    for place in range(text.index("(", begin), len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    raise HeaderError(f"Backend.hpp: got `{text[begin : begin + 80]}`, want a closed list of parameters")


def _split(parameters: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth = [""], 0
    for character in parameters:
        depth += (character in "<({") - (character in ">)}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _type_of(parameter: str) -> str:
    declared = parameter.split("=")[0].strip()
    named = re.fullmatch(r"(.*[\w>&*:])[ ](\w+)|(.*[>&*]) ?(\w+)", declared)
    if named is None:
        return declared
    of_type = (named[1] or named[3]).strip()
    is_word_of_type = of_type in ("const", "unsigned", "long") and (named[2] or named[4]) in ("int", "long", "char")
    return declared if is_word_of_type else of_type
