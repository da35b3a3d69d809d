# SPDX-License-Identifier: Apache-2.0
"""The virtual functions of the installed c10d::Backend, and the C++ of those that droptest does not write by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Functions that move data by their types, and may be forwarded as they are: a receiver loses nothing, because the
# sender has, and memory that is allocated is no message.
_MAY_FORWARD = ("recv", "recvAnysource", "allocateTensor")
# Words of the types that carry no messages. A type with any other word may: a tensor, work, future, window, backend.
_WITHOUT_MESSAGES = set(
    """
    const noexcept void bool int long short unsigned float double size_t int32_t int64_t uint32_t uint64_t
    std c10 at string string_view vector optional pair map unordered_map set function shared_ptr intrusive_ptr
    chrono milliseconds seconds Device DeviceIndex Allocator Store Options BarrierOptions ErrorType WorkInfo
    AbortHook CompletionHook ReconfigureHandle
""".split()
)

# Functions of some versions that are more than forwarded.
_FORWARDED = "{{ return inner_->{name}({arguments}); }}"
_REFUSED = '{{ network_->refuse_loss("{name}"); return inner_->{name}({arguments}); }}'
_WITHOUT_LOSS = "{{ return inner_->{name}({arguments}) && !network_->can_lose(); }}"
_GATHER = '{{ class_of("gather", message_of(a1)); return inner_->{name}({arguments}); }}'
_BODIES = {
    "gather_single": _GATHER,
    "gather_into_tensor": _GATHER,
    "split": """{{
    std::vector<std::int32_t> part;
    for (const auto rank : a1) part.push_back(members_.at(static_cast<std::size_t>(rank)));
    const auto made = inner_->split(a0, a1, a2);
    if (!made) return made;
    const std::uint32_t number = agreed_number(*a0, *network_, made->getRank(), part);
    return c10::make_intrusive<LossyBackend>(made, network_, std::move(part), number);
  }}""",
    "setGroupUid": "{{ Backend::setGroupUid(a0); inner_->setGroupUid(a0); }}",
    "startCoalescing": "{{ is_coalescing_ = true; inner_->startCoalescing(); }}",
    "endCoalescing": "{{ is_coalescing_ = false; return inner_->endCoalescing(); }}",
    "supportsShrinking": _WITHOUT_LOSS,
    "supportsTimeEstimation": _WITHOUT_LOSS,
    "startTimeEstimate": _REFUSED,  # the calls after it only seem to happen
}

# Of two backends, where no tensor says which.
_OF_BOTH = ("setTimeout", "addEphemeralTimeout", "setSequenceNumberForGroup", "abort", "shutdown")
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
    """A virtual function.

    types: of the parameters, without names and defaults. after: what follows on the parameters: "", " const", ...
    alias: the function that the header's own body calls with the same arguments; None: it does something else.
    """

    name: str
    result: str
    types: tuple[str, ...]
    after: str = ""
    alias: str | None = None

    def moves_data(self) -> bool:
        """Whether a type of the signature may carry messages: an address, or any type whose words are not known."""
        text = " ".join((self.result, self.after, *self.types))
        return "*" in text or not set(re.findall(r"\w+", text)) <= _WITHOUT_MESSAGES


def backend_header() -> Path:
    """Backend.hpp of the PyTorch that is imported."""
    from torch.utils.cpp_extension import include_paths

    for folder in include_paths():
        if (header := Path(folder) / "torch/csrc/distributed/c10d/Backend.hpp").is_file():
            return header
    raise HeaderError("Backend.hpp: this PyTorch has no headers of torch.distributed; want one with them")


def virtual_functions(header: str) -> list[Function]:
    """Those that class Backend itself declares, in order, without its destructor and those of nested classes. Raises:
    HeaderError."""
    text = _without_comments(header)
    start = re.search(r"\bclass\s+(?:\w+\s+)*Backend\b[^;{]*\{", text)
    if start is None:
        raise HeaderError("Backend.hpp: has no class Backend, want the header of torch 2.6 or later")
    end = _end_of(text, start.end() - 1, "{", "}")
    body = text[start.end() : end - 1]
    found, place = [], 0
    while (next_one := re.compile(r"\bvirtual\b|\{").search(body, place)) is not None:
        if next_one[0] == "{":  # a nested class, or the body of a function that is not virtual
            place = _end_of(body, next_one.start(), "{", "}")
            continue
        function, place = _function(body, next_one.end())
        if function is not None:
            found.append(function)
    return found


def overridden(source: str) -> set[str]:
    """The functions that a class overrides by hand."""
    return set(re.findall(r"\b(\w+)\([^;{}]*\)(?: const)? override", source))


def forwarded(header: str, source: str, version: str) -> str:
    """C++ for the functions of the header that the source does not override. A new name of a function that it does
    override, which the header's own body shows, goes there. Functions without data go to the inner backend, and others
    that are not listed above are refused under loss. version: of PyTorch, for the compiler's messages."""
    by_hand = overridden(source)
    lines = []
    for function in virtual_functions(header):
        if function.name in by_hand:
            continue
        if function.alias in by_hand:
            body = f"{{{{ return this->{function.alias}({{arguments}}); }}}}"
        elif function.name in _BODIES:
            body = _BODIES[function.name]
        else:
            body = _FORWARDED if function.name in _MAY_FORWARD or not function.moves_data() else _REFUSED
        lines += _definition(function, body.format(name=function.name, arguments=_arguments(function)), version)
    return "\n".join(lines) + "\n"


def by_device(header: str, version: str) -> str:
    """C++ for the functions of the header: those with tensors go to the backend of the tensors' device, the others to
    that of CUDA, or to those that are listed."""
    lines = []
    for function in virtual_functions(header):
        arguments = _arguments(function)
        tensors = ", ".join(f"a{i}" for i, of_type in enumerate(function.types) if re.search(r"\bTensor\b", of_type))
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
        lines += _definition(function, body, version)
    return "\n".join(lines) + "\n"


def does_not_fit(messages: str) -> str | None:
    """The function of the generated C++, with PyTorch's version, that a compiler's messages name; None: they name
    none."""
    found = re.search(r"c10d::Backend::\w+ of torch [^\s:]+", messages)
    return found and found[0]


def _definition(function: Function, body: str, version: str) -> list[str]:
    parameters = ", ".join(f"{of_type} a{i}" for i, of_type in enumerate(function.types))
    return [f'#line 1 "c10d::Backend::{function.name} of torch {version}"',
            f"  {function.result} {function.name}({parameters}){function.after} override {body}"]  # fmt: skip


def _arguments(function: Function) -> str:
    return ", ".join(f"std::forward<{of_type}>(a{i})" for i, of_type in enumerate(function.types))


def _without_comments(header: str) -> str:
    """Without comments, texts, directives of the preprocessor and attributes."""
    literals = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])'"
    text = re.sub(literals, lambda found: '""' if found[0][0] == '"' else " ", header, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#(?:\\.|[^\\\n])*", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\[\[.*?\]\]", " ", text, flags=re.DOTALL)


def _function(text: str, begin: int) -> tuple[Function | None, int]:
    """The virtual function whose declaration begins there, and the place after it; None: none to override."""
    opening = text.find("(", begin)
    end = _end_of(text, opening, "(", ")") if opening >= 0 else len(text)
    declaration = " ".join(text[begin:end].split())
    if re.match(r"~\w+ ?\(", declaration):
        return None, end
    parts = re.fullmatch(r"(.*?)\b(\w+) ?\((.*)\)", declaration)
    tail = re.compile(r"([^;{=]*)").match(text, end)
    if parts is None or not parts[1].strip() or parts[2] == "operator":
        raise HeaderError(f"Backend.hpp: got `{declaration[:200]}`, want a virtual function")
    after = " ".join(word for word in tail[1].split() if word != "override")
    place, alias = tail.end(), None
    names, types = [], []
    for parameter in _split(parts[3]):
        of_type, name = _type_and_name(parameter)
        types.append(of_type)
        names.append(name)
    if text[place : place + 1] == "{":
        end_of_body = _end_of(text, place, "{", "}")
        call = re.search(r"\breturn (\w+)\(([\w, ]*)\); ?\}$", " ".join(text[place:end_of_body].split()))
        if call is not None and _split(call[2]) == names:
            alias = call[1]
        place = end_of_body
    if re.search(r"\bfinal\b", after):
        return None, place
    return Function(parts[2], parts[1].strip(), tuple(types), f" {after}" if after else "", alias), place


def _end_of(text: str, begin: int, opening: str, closing: str) -> int:
    """After the bracket that closes the one at `begin`."""
    depth = 0
    for place in range(begin, len(text)):
        depth += {opening: 1, closing: -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    raise HeaderError(f"Backend.hpp: got `{text[begin : begin + 80]}`, want a closing `{closing}`")


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


def _type_and_name(parameter: str) -> tuple[str, str]:
    """name: "" where the declaration has none."""
    declared = parameter.split("=")[0].strip()
    named = re.fullmatch(r"(.*[\w>&*:])[ ](\w+)|(.*[>&*]) ?(\w+)", declared)
    if named is None:
        return declared, ""
    of_type, name = (named[1] or named[3]).strip(), named[2] or named[4]
    builtin = ("const", "volatile", "unsigned", "signed", "short", "int", "long", "char", "float", "double", "bool")
    if name in builtin or all(word in ("const", "volatile") for word in of_type.split()):
        return declared, ""
    return of_type, name
