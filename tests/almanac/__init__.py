"""When jobs ought to run, found without the product: the judge of `schedd.core.schedule.cron`.

    meaning   what one expression means, as plain sets of values
    drawing   random expressions, each with its meaning; nothing is parsed
    walker    every minute of real time in turn: what do the clocks of the zone show now?
    trials    a triple of expression, zone and window, asked of product, walker and cronsim

One idea: an expression is drawn together with what it means, and the instants are found by walking,
so nothing here can share a mistake with masks, segments or searches. The rules are read from "What
jobs mean" alone. `python -m almanac` is the long form (`make cron-long`).
"""
