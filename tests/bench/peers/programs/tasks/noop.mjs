// graphile-worker's task `noop`.
import { append } from "../appending.cjs";

export default async ({ number }) => append(number);
