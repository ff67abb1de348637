"""The sandbox: machines at Daytona, the stream to their supervisor, and the interpreter over it."""
