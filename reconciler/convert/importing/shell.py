"""Commands of a shell script, read without a shell.

Only literal text is understood: quotes, line continuations, here-documents, variables that the script assigns
itself outside of conditions and loops. Everything else becomes a mark. Nothing is run.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from reconciler.convert.importing.placeholders import DATE, SourceError, is_marked, mark

Value = str | list[str]
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_DEFAULT = re.compile(r":?[-=](.*)", re.DOTALL)
_RUN = re.compile(r"""[^\s'"\\$`;&|()<>]+""")
_QUOTED_RUN = re.compile(r"""[^"\\$`]+""")
_BLANKS, _ENDS = " \t", "\n;&|()"
_OPENING = frozenset({"if", "case", "for", "while", "until", "select"})
_CLOSING = frozenset({"fi", "esac", "done"})
_PREFIXES = frozenset(
    {
        *("then", "else", "elif", "do", "!", "{", "}", "time", "exec", "sudo", "command", "nohup", "env"),
        *("export", "readonly", "declare", "local", "typeset"),
    }
)
_DECLARING = frozenset({"export", "readonly", "declare", "local", "typeset"})
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_MOST_DEPTH = 30
_MOST_TEXT = 4_000_000
"""Most characters of all expanded words: variables can repeat each other."""


class ShellCommand(Struct):
    """One command of a script.

    Attributes:
        words: Its words, expanded.
        line: Its first line, from 1.
        environ: The variables before the command, and all that are known.
        stdin: Its here-document; None without one.
    """

    words: list[str]
    line: int
    environ: Mapping[str, str]
    stdin: str | None = None


class ShellState(Struct):
    """State that commands of a file share.

    Attributes:
        variables: The values assigned so far.
        files: The files that here-documents have written.
        commands: All commands with more than an assignment.
        defaults: The names of variables whose default counts.
        branched: By variable, the first line that assigns it in a condition or a loop.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    commands: list[ShellCommand] = field(default_factory=list)
    defaults: list[str] = field(default_factory=list)
    branched: dict[str, int] = field(default_factory=dict)
    length: int = 0


class _Piece(NamedTuple):
    """Part of a word; an unquoted expansion is split at blanks."""

    text: str
    is_split: bool = False


class _Heredoc(NamedTuple):
    end: str
    is_indented: bool
    is_expanded: bool
    command: ShellCommand
    file: str


def read_shell(text: str, state: ShellState, line: int = 1, depth: int = 0) -> None:
    """Read a script into a state; `line` is the script's first line. Raise SourceError."""
    _Shell(text, state, line, depth).read()


class ShellError(SourceError):
    """Unreadable script; `line` is the place."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message, hint="correct the script, or import the command line alone")
        self.line = line


class _Shell:
    def __init__(self, text: str, state: ShellState, line: int, depth: int) -> None:
        self._text = text
        self._state = state
        self._depth = depth
        self._offset = 0
        self._first = line
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._blocks = 0
        self._heredocs: list[_Heredoc] = []
        self._assigned = ""
        if depth > _MOST_DEPTH:
            raise ShellError("commands are nested too deeply", line)

    def read(self) -> None:
        while self._offset < len(self._text):
            char = self._text[self._offset]
            if char == "\n":
                self._offset += 1
                self._read_heredocs()
            elif char in _BLANKS or char in _ENDS or self._at("\\\n"):
                self._offset += 2 if char == "\\" else 1
            elif char == "#":
                self._skip_line()
            else:
                self._command()

    def _line(self, offset: int) -> int:
        return self._first + bisect_right(self._starts, offset) - 1

    def _at(self, text: str) -> bool:
        return self._text.startswith(text, self._offset)

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._offset)
        self._offset = len(self._text) if end < 0 else end

    def _command(self) -> None:
        """Read one command up to its end."""
        command = ShellCommand([], self._line(self._offset), {})
        local: dict[str, Value] = {}
        output = ""
        is_declaring = False
        while self._offset < len(self._text):
            char = self._text[self._offset]
            if char in _BLANKS:
                self._offset += 1
            elif self._at("\\\n") or self._at("\\\r\n"):
                self._offset = self._text.index("\n", self._offset) + 1
            elif char in _ENDS:
                break
            elif char == "#":
                self._skip_line()
            elif char in "<>" or re.match(r"\d?[<>]", self._text[self._offset : self._offset + 2]):
                output = self._redirection(command) or output
            elif (not command.words or is_declaring) and self._assignment(local):
                continue
            else:
                words = self._word()
                if not command.words and len(words) == 1 and words[0] in _PREFIXES | _OPENING | _CLOSING:
                    is_declaring = is_declaring or words[0] in _DECLARING
                    if self._keyword(words[0]):
                        return
                    continue
                command.words += words
        self._finish(command, local, output)

    def _keyword(self, word: str) -> bool:
        """Follow a word of the shell's grammar; True if the command ends with it."""
        if word in _CLOSING:
            self._blocks = max(0, self._blocks - 1)
        elif word in _OPENING:
            self._blocks += 1
            if word in ("for", "select", "case"):
                # The words up to the line's end are a variable and its values.
                match = re.compile(r"[ \t]*([A-Za-z_]\w*)").match(self._text, self._offset)
                if match and word != "case":
                    self._state.variables[match[1]] = mark(match[1])
                    self._state.branched.setdefault(match[1], self._line(self._offset))
                ends = [self._text.find(end, self._offset) for end in ("\n", ";")]
                self._offset = min([end for end in ends if end >= 0], default=len(self._text))
                return True
        return False

    def _finish(self, command: ShellCommand, local: dict[str, Value], output: str) -> None:
        if not command.words:
            for name, value in local.items():
                unknown = self._blocks and self._state.variables.get(name) != value
                self._state.variables[name] = mark(name) if unknown else value
                if unknown:
                    self._state.branched.setdefault(name, command.line)
            if not self._heredocs:
                return
        variables = {**self._state.variables, **local}
        command.environ = {name: value for name, value in variables.items() if isinstance(value, str)}
        self._state.commands.append(command)
        for index, heredoc in enumerate(self._heredocs):
            if heredoc.command is command and command.words[:1] in (["cat"], ["tee"]):
                file = output or (command.words[1] if command.words[0] == "tee" and command.words[1:] else "")
                self._heredocs[index] = heredoc._replace(file=file)

    def _assignment(self, local: dict[str, Value]) -> bool:
        """Read `NAME=value`; False if the next word is none."""
        match = _ASSIGNMENT.match(self._text, self._offset)
        if not match:
            return False
        name, adds = match.groups()
        self._offset = match.end()
        self._assigned = name
        if self._at("("):
            value: Value = self._array()
        else:
            value = "".join(piece.text for piece in self._pieces())
        self._assigned = ""
        if adds:
            before = self._state.variables.get(name, mark(name))
            if isinstance(before, list):
                value = [*before, *(value if isinstance(value, list) else [value])]
            else:
                value = before + (value if isinstance(value, str) else " ".join(value))
        local[name] = value
        return True

    def _array(self) -> list[str]:
        self._offset += 1
        words: list[str] = []
        while self._offset < len(self._text):
            char = self._text[self._offset]
            if char == ")":
                self._offset += 1
                return words
            if char in " \t\r\n" or self._at("\\\n"):
                self._offset += 2 if char == "\\" else 1
            elif char == "#":
                self._skip_line()
            elif char in _ENDS:
                break
            else:
                words += self._word()
        raise ShellError('a list of words has no ")"', self._line(min(self._offset, len(self._text) - 1)))

    def _redirection(self, command: ShellCommand) -> str:
        """Skip a redirection, or note a here-document; return the file that the output goes to."""
        match = re.compile(r"\d*(<<<|<<-?|>>|>\||[<>]&?|&>)").match(self._text, self._offset)
        assert match is not None
        operator, line = match[1], self._line(self._offset)
        self._offset = match.end()
        while self._offset < len(self._text) and self._text[self._offset] in _BLANKS:
            self._offset += 1
        if self._at("("):  # the output of a process
            self._offset += 1
            self._substituted(self._closing(")"))
            command.words.append(mark("FILE"))
            return ""
        is_quoted = self._offset < len(self._text) and self._text[self._offset] in "'\"\\"
        words = (
            self._word() if self._offset < len(self._text) and self._text[self._offset] not in _ENDS else []
        )
        if operator.startswith("<<") and operator != "<<<":
            if not words:
                raise ShellError("a here-document has no name", line)
            self._heredocs.append(_Heredoc(words[0], operator.endswith("-"), not is_quoted, command, ""))
        elif operator == "<<<":
            command.stdin = " ".join(words)
        return words[0] if words and operator in (">", ">>", ">|") and not match[0][0].isdigit() else ""

    def _read_heredocs(self) -> None:
        waiting, self._heredocs = self._heredocs, []
        for heredoc in waiting:
            lines = []
            while self._offset < len(self._text):
                end = self._text.find("\n", self._offset)
                end = len(self._text) if end < 0 else end
                line = self._text[self._offset : end]
                self._offset = min(end + 1, len(self._text))
                line = line.lstrip("\t") if heredoc.is_indented else line
                if line.rstrip("\r") == heredoc.end:
                    break
                lines.append(line)
            body = "".join(f"{line}\n" for line in lines)
            text = self._expanded(body) if heredoc.is_expanded else body
            heredoc.command.stdin = text
            if heredoc.file:
                self._state.files[heredoc.file] = text

    def _expanded(self, text: str) -> str:
        """Return the text of a here-document with its variables."""
        inner = _Shell(text, self._state, self._line(self._offset), self._depth + 1)
        return "".join(piece.text for piece in inner._quoted_pieces(""))

    def _word(self) -> list[str]:
        """Read a word; return the words that it becomes."""
        start = self._offset
        words: list[str] = []
        open_word: str | None = None
        for piece in self._pieces():
            if not piece.is_split:
                open_word = (open_word or "") + piece.text
                continue
            parts = re.split(r"\s+", piece.text)
            for number, part in enumerate(parts):
                if number and open_word is not None:
                    words.append(open_word)
                    open_word = None
                if part:
                    open_word = (open_word or "") + part
        if self._offset == start:  # a character that begins no word
            self._offset += 1
        self._pay(sum(map(len, words)))
        return words if open_word is None else [*words, open_word]

    def _pay(self, length: int) -> None:
        """Count expanded text against the limit; raise ShellError beyond it."""
        self._state.length += length
        if self._state.length > _MOST_TEXT:
            raise ShellError("the script expands to too much text", self._line(self._offset))

    def _pieces(self) -> list[_Piece]:
        """Read the pieces of one word."""
        pieces: list[_Piece] = []
        while self._offset < len(self._text):
            char = self._text[self._offset]
            if char in _BLANKS or char in _ENDS or char in "<>\r":
                break
            if char == "'":
                end = self._find("'", self._offset + 1)
                pieces.append(_Piece(self._text[self._offset + 1 : end]))
                self._offset = end + 1
            elif char == '"':
                self._offset += 1
                pieces += self._quoted_pieces('"')
            elif self._at("\\\n") or self._at("\\\r\n"):
                self._offset = self._text.index("\n", self._offset) + 1
            elif char == "\\":
                pieces.append(_Piece(self._text[self._offset + 1 : self._offset + 2]))
                self._offset += 2
            elif char == "$" and self._text[self._offset + 1 : self._offset + 2] == "'":
                pieces.append(_Piece(self._ansi_quoted()))
            elif char in "$`":
                pieces += self._expansion(is_quoted=False)
            else:
                pieces.append(self._run(_RUN))
        return pieces

    def _run(self, pattern: re.Pattern[str]) -> _Piece:
        """Read characters without a meaning, at least one."""
        match = pattern.match(self._text, self._offset)
        end = match.end() if match else self._offset + 1
        text, self._offset = self._text[self._offset : end], end
        return _Piece(text)

    def _quoted_pieces(self, end: str) -> list[_Piece]:
        """Read the pieces inside double quotes, or to the end of the text."""
        start = self._offset
        pieces: list[_Piece] = [_Piece("")]
        while self._offset < len(self._text):
            char = self._text[self._offset]
            if char == end:
                self._offset += 1
                return pieces
            if char == "\\" and self._text[self._offset + 1 : self._offset + 2] in '$`"\\\n':
                following = self._text[self._offset + 1 : self._offset + 2]
                pieces.append(_Piece("" if following == "\n" else following))
                self._offset += 2
            elif char in "$`":
                pieces += self._expansion(is_quoted=True)
            else:
                pieces.append(self._run(_QUOTED_RUN))
        if end:
            raise ShellError("a quote is never closed", self._line(start - 1))
        return pieces

    def _ansi_quoted(self) -> str:
        start = self._offset
        self._offset += 2
        text = ""
        while self._offset < len(self._text):
            char = self._text[self._offset]
            self._offset += 1
            if char == "'":
                return text
            if char == "\\":
                following = self._text[self._offset : self._offset + 1]
                text += _ESCAPES.get(following, following)
                self._offset += 1
            else:
                text += char
        raise ShellError("a quote is never closed", self._line(start))

    def _find(self, text: str, start: int) -> int:
        end = self._text.find(text, start)
        if end < 0:
            raise ShellError("a quote is never closed", self._line(start - 1))
        return end

    def _expansion(self, *, is_quoted: bool) -> list[_Piece]:
        """Read what begins with "$" or "`"."""
        char = self._text[self._offset]
        self._offset += 1
        if char == "`":
            end = self._find("`", self._offset)
            inner, self._offset = self._text[self._offset : end], end + 1
            return [_Piece(self._substituted(inner))]
        if self._at("(("):
            self._offset += 1
            self._closing(")")
            self._offset += self._at(")")
            return [_Piece(mark(self._assigned or "NUMBER"))]
        if self._at("("):
            self._offset += 1
            return [_Piece(self._substituted(self._closing(")")))]
        if self._at("{"):
            self._offset += 1
            return self._braced(self._closing("}"), is_quoted=is_quoted)
        match = _NAME.match(self._text, self._offset)
        if match:
            self._offset = match.end()
            return self._variable(match[0], is_quoted=is_quoted)
        special = self._text[self._offset : self._offset + 1]
        if special and special in "0123456789@*#?$!-":
            self._offset += 1
            return [_Piece(mark(f"ARG_{special}" if special.isdigit() else "ARGS"))]
        return [_Piece("$")]

    def _closing(self, close: str) -> str:
        """Return the text up to the closing bracket, and go behind it."""
        opening = {")": "(", "}": "{"}[close]
        start, depth, quote = self._offset, 1, ""
        while self._offset < len(self._text):
            char = self._text[self._offset]
            self._offset += 1
            if char == "\\" and quote != "'":
                self._offset += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == opening:
                depth += 1
            elif char == close:
                depth -= 1
                if not depth:
                    return self._text[start : self._offset - 1]
        raise ShellError(f'"${opening}" is never closed', self._line(start - 1))

    def _substituted(self, inner: str) -> str:
        """Return the mark of a command's output, and read the command for jobs that it submits."""
        words = inner.split()
        if words[:1] == ["date"]:
            return mark(DATE)
        read_shell(inner, self._state, self._line(self._offset), self._depth + 1)
        return mark(self._assigned or (words[0].rpartition("/")[2] if words else "OUTPUT"))

    def _braced(self, inner: str, *, is_quoted: bool) -> list[_Piece]:
        match = _NAME.match(inner)
        if not match:
            return [_Piece(mark(inner if inner.isalnum() else "VALUE"))]
        name, rest = match[0], inner[match.end() :]
        if not rest or rest in ("[@]", "[*]"):
            return self._variable(name, is_quoted=is_quoted)
        default = _DEFAULT.fullmatch(rest)
        value = self._state.variables.get(name)
        if default and (value is None or value == mark(name)):
            self._state.defaults.append(name)
            return [_Piece(self._expanded(default[1].strip("'\"")), is_split=not is_quoted)]
        if (default or rest.startswith(":?")) and value is not None:
            return self._variable(name, is_quoted=is_quoted)
        return [_Piece(mark(name))]

    def _variable(self, name: str, *, is_quoted: bool) -> list[_Piece]:
        value = self._state.variables.get(name)
        if value is None:
            return [_Piece(mark(name))]
        self._pay(sum(map(len, value)) if isinstance(value, list) else len(value))
        if isinstance(value, list):
            # A separator that no word contains keeps the items apart.
            pieces = [piece for item in value for piece in (_Piece(" ", is_split=True), _Piece(item))]
            return [_Piece(" ".join(value))] if is_quoted and len(value) == 1 else pieces[1:]
        return [_Piece(value, is_split=not is_quoted and not is_marked(value))]
