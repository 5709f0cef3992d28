// GitHub as somebody else understands it, on a port of its own. NODE_PATH says where the emulator is installed.
const net = require("node:net");
const { join } = require("node:path");
const { pathToFileURL } = require("node:url");

// It would listen on every interface.
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port) {
  return listen.call(this, port, "127.0.0.1");
};

const seed = {
  tokens: { owners: { login: "acme" }, strangers: { login: "stranger" } },
  github: {
    users: [{ login: "acme" }, { login: "stranger" }],
    repos: [{ owner: "acme", name: "models" }],
  },
};

const free = net.createServer();
free.listen(0);
free.once("listening", () => {
  const { port } = free.address();
  free.close(async () => {
    const { createEmulator } = await import(pathToFileURL(join(process.env.NODE_PATH, "emulate", "dist", "api.js")));
    const { url } = await createEmulator({ service: "github", port, seed });
    console.log(url);
  });
});
