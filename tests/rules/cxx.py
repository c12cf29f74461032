"""Just enough of C++ to measure it: comments and strings blanked, and where functions begin and
end."""

import re

from layering import sources, strip_comments_and_strings  # noqa: F401

RAW_STRING = re.compile(r'R"([^(\s]*)\(.*?\)\1"', re.S)
NOT_A_FUNCTION = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$")
CONTROL = re.compile(r"^(if|for|while|switch|catch|do|else|try)\b")
NAME = re.compile(r"([~\w]+(?:::[~\w]+)*|operator\s*\S+?)\s*\(")


def code_of(text):
    """The same text, same lines, without comments, strings and the preprocessor's lines."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))  # noqa: E731
    text = RAW_STRING.sub(blank, text)
    text = strip_comments_and_strings(text)
    return re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text)


def kind_of_scope(head):
    """What a `{` behind `head` opens, outside of functions: "scope", "function" or "other"."""
    head = re.sub(r"\btemplate\s*<", "<", head).strip()
    if re.search(r"\bextern\s*$", head) or NOT_A_FUNCTION.search(
            re.sub(r"\balignas\s*\([^)]*\)|\[\[.*?\]\]|"
                   r"__attribute__\s*\(\(.*?\)\)", "", head)):
        return "scope"
    before = head.split("(")[0]
    if "(" not in head or re.search(r"(?<![=!<>])=(?!=)", before) and "operator" not in before:
        return "other"
    return "function"


def functions(text):
    """(name, first line, lines) of each function with a body, outermost ones."""
    code = code_of(text)
    stack, head_start, depth_of_function, open_function = [], 0, None, None
    for match in re.finditer(r"[{};]", code):
        at, c = match.start(), match.group(0)
        if c == "{":
            kind = "inner"
            if depth_of_function is None:
                kind = kind_of_scope(code[head_start:at])
                if stack and stack[-1] == "other":
                    kind = "other"
            if kind == "function":
                head = code[head_start:at]
                begin = head_start + len(head) - len(head.lstrip())
                name = NAME.search(
                    re.sub(r"\b(alignas|decltype|noexcept|explicit|__attribute__|requires)\s*\(",
                           " ", head))
                open_function = (name.group(1) if name else "?", code.count("\n", 0, begin) + 1)
                depth_of_function = len(stack)
            stack.append(kind)
        elif c == "}":
            if stack:
                stack.pop()
            if depth_of_function is not None and len(stack) == depth_of_function:
                name, first = open_function
                # A member's initialiser `a_{x}` in front of the body looks like one: the body
                # follows at once.
                rest = code[at + 1:].lstrip()
                if rest[:1] not in (",", "{"):
                    yield name, first, code.count("\n", 0, at) + 2 - first
                    depth_of_function = None
                    head_start = at + 1
                elif rest[:1] == ",":
                    pass
                continue
        if depth_of_function is None:
            head_start = at + 1
