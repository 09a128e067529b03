// graphile-worker's own configuration file; what differs from its defaults is handed in.
import { fileURLToPath } from "node:url";

export default {
  worker: {
    taskDirectory: fileURLToPath(new URL("tasks", import.meta.url)),
    fileExtensions: [".mjs"],
    ...JSON.parse(process.env.PEERS_SETTINGS),
  },
};
