"""What can go wrong for a client of local mode. Each error says what happened and what to do."""


class LocalError(Exception):
    """Local mode cannot do what was asked. `message` is what happened, `hint` what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class LocalStartError(LocalError):
    """The supervisor or one of its parts did not start. `log_tail` holds the last lines of the part's log."""

    def __init__(self, message: str, *, hint: str = "", log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.log_tail = log_tail

    def __str__(self) -> str:
        """The whole story as the terminal prints it: message, last log lines, what to do."""
        lines = [self.message, *(f"  | {line}" for line in self.log_tail)]
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)
