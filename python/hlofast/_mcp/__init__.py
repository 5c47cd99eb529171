"""`hlofast mcp`: hlofast for agents, as a server of the Model Context Protocol on standard streams.

`tools.py` and `compare.py` hold the tools, `rows.py` the filters of tables, `answer.py` the form
and length of answers, `files.py` the files that they may read, `schema.py` their arguments,
`server.py` the protocol. Tools render the `Result`s of the analyses; they compute nothing.
"""
