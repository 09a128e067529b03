"""What a worker decides, without I/O, clock or asyncio: time and facts come in as arguments.

admission     which assignments are taken, started, refused, revoked
grants        how free slots are dealt to the members that ask for them
promises      how far each of them may still push, by grants that were lowered too
trust         until when this worker may believe that its lease lives
doom          which programs its keeper kills when that ends, and when
cluster_time  the members' time, bounded from both sides, on this host's boot clock
outcome       how an attempt ended, its reason and its digest
capture       the first and last of a stream of any length
ids           the names of things
"""
