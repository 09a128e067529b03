// The task `noop` of graphile-worker: appends one line to the file of starts.
import { append } from "../appending.cjs";

export default async ({ number }) => append(number);
