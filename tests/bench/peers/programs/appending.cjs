// The no-op job of every compared scheduler in JavaScript: appends one line with its number and start time.
"use strict";

const { openSync, writeSync } = require("node:fs");

const file = openSync(process.env.PEERS_STARTS, "a", 0o600);

exports.append = (number) => {
  const at = (performance.timeOrigin + performance.now()) / 1000;
  writeSync(file, `${String(number).padStart(10, "0")} ${at.toFixed(6)}\n`);
};
