// Configuration file of graphile-worker. PEERS_SETTINGS contains the settings that differ from its defaults.
import { fileURLToPath } from "node:url";

export default {
  worker: {
    taskDirectory: fileURLToPath(new URL("tasks", import.meta.url)),
    fileExtensions: [".mjs"],
    ...JSON.parse(process.env.PEERS_SETTINGS),
  },
};
