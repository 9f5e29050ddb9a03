"""Where sgguard meets torch and SGLang's processes. Nothing here imports them."""
