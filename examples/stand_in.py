"""A stand-in for three of SGLang's classes, for `sgguard demo` where SGLang is not installed."""
