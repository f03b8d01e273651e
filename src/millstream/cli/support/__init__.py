"""Parts that commands share: options, output, record formats, errors of usage."""
