"""Parts that commands share: options, output, record formats, usage errors."""
