# SPDX-License-Identifier: Apache-2.0

"""Sets keepalive as Python programs do: keepalive.py HOST PORT WAY"""

import socket
import sys

host, port, way = sys.argv[1:]
s = socket.create_connection((host, int(port)))
if way == "urllib3":  # what its documentation recommends
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ]
elif way == "short":  # a user timeout that one lost probe uses up
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2000),
    ]
elif way == "endless":
    options = [
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0),
    ]
else:
    sys.exit("no such way: " + way)
for option in options:
    s.setsockopt(*option)
print("set", flush=True)
try:
    while line := s.recv(100):
        print(line.decode(), end="", flush=True)
    print("end", flush=True)
except TimeoutError:
    print("timed out", flush=True)
