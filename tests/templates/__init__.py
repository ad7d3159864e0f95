"""Chat templates against jinja2 set up as transformers sets it up."""
