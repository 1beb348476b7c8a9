"""Parts of every page: shell, page or fragment, content security policy."""
