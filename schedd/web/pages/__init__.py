"""The pages of the dashboard.

    a module a page ──Page──▶ site ──▶ address, live stream, forms      page.py defines Page
         │ calls of api/ ──▶ messages ──pure──▶ values ──templates──▶ HTML

Every page is rendered on the server, from the same calls as gRPC and REST, and works without a
script. With the script it is live: a stream sends its body after each change, without polling.
"""
