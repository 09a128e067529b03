"""The pages: what people see of the cluster in a browser, and do with it.

    a module a page ──Page──▶ site ──▶ address, live stream, forms      page.py says what a Page is
         │ calls of api/ ──▶ messages ──pure──▶ values ──templates──▶ HTML

Every page is made here, from the same calls as gRPC and REST, and reads well without a script. With
one it lives: a stream sends its body anew when that has changed, and nothing asks again and again.
"""
