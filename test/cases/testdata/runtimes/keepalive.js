// SPDX-License-Identifier: Apache-2.0

// Sets keepalive as Node programs do: keepalive.js HOST PORT WAY
const net = require('net');

const [host, port, way] = process.argv.slice(2);
const set = {
  delay: (s) => s.setKeepAlive(true, 60000), // and, by libuv, an interval of 1 s and a count of 10
  on: (s) => s.setKeepAlive(true),
  off: (s) => { s.setKeepAlive(true, 60000); s.setKeepAlive(false); },
};

const s = net.connect({ host, port: Number(port) }, () => {
  set[way](s);
  console.log('set');
});
s.on('data', (b) => process.stdout.write(b));
s.on('end', () => console.log('end'));
s.on('error', (e) => console.log(e.code === 'ETIMEDOUT' ? 'timed out' : e.code));
