// GitHub as somebody else understands it, on a port of its own. NODE_PATH says where the emulator is installed.
const { once } = require("node:events");
const net = require("node:net");
const { join } = require("node:path");
const { pathToFileURL } = require("node:url");

// It would listen on every interface.
const listen = net.Server.prototype.listen;
let newest;
net.Server.prototype.listen = function (port) {
  newest = this;
  return listen.call(this, port, "127.0.0.1");
};

const seed = {
  tokens: { owners: { login: "acme" }, strangers: { login: "stranger" } },
  github: {
    users: [{ login: "acme" }, { login: "stranger" }],
    repos: [{ owner: "acme", name: "models" }],
  },
};

(async () => {
  const { createEmulator } = await import(pathToFileURL(join(process.env.NODE_PATH, "emulate", "dist", "api.js")));
  // As late as can be, so that nobody else takes the port meanwhile.
  const free = net.createServer();
  free.listen(0);
  await once(free, "listening");
  const { port } = free.address();
  await new Promise((closed) => free.close(closed));
  const { url } = await createEmulator({ service: "github", port, seed });
  if (!newest.listening) await once(newest, "listening");
  console.log(url);
})();
