// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"
)

// Who writes what a message says to write is not refused again. Each row is what was
// written, what of the message is written instead, and the whole that comes of it.
func TestAdviceIsTaken(t *testing.T) {
	for _, tc := range []struct{ was, advice, is string }{
		{"user_timeout: 15000", "15000ms", "user_timeout: 15000ms"},
		{"user_timeout: 15000", "(15s) or 15000s (4h10m)", "user_timeout: 15000s"},
		{"user_timeout: 20", "write 20s", "user_timeout: 20s"},
		{"user_timeout: 15s, keepalive: {idle: 5000}", "write 5000ms (5s) or 5000s", "keepalive: {idle: 5000ms}"},
		{"keepalive: {idle: 5500}", "write 5500s", "keepalive: {idle: 5500s}, user_timeout: 2h"},
		{"keepalive: {interval: 2}", "write 2s", "keepalive: {interval: 2s}"},
		{"keepalive: {interval: 1500ms}", "write 1s or 2s", "keepalive: {interval: 1s}"},
		{"connect_timeout: 3000", "write 3000ms, or write off", "connect_timeout: 3000ms"},
		{"connect_timeout: 9", "write 9s, or write off", "connect_timeout: off"},
		{"probe: {window: 3000}", "write 3000ms", "probe: {window: 3000ms}"},
		{"probe: {window: 3}", "write 3s", "probe: {window: 3s}"},
		{"silence: 30", "write 30s, or write off", "silence: 30s"},
		{"silence: 30000", "write 30000ms (30s) or 30000s (8h20m), or write off", "silence: 30000ms"},
		{"close_silent_after: 600", "write 600s", "close_silent_after: 600s"},
		{"silence: 100000000", "write one from 1s to 24h, or write off", "silence: 24h"},
		{"app_probe: {http: {}, timeout: 500}", "write 500ms", "app_probe: {http: {}, timeout: 500ms}"},
		{"app_probe: {http: {}, timeout: 5}", "write 5s", "app_probe: {http: {}, timeout: 5s}"},

		{`keepalive: {count: "5"}`, `"5" is text: write 5, without quotes`, "keepalive: {count: 5}"},
		{`keepalive: {count: '500'}`, "lower it to 127 or less, without quotes", "keepalive: {count: 127}, user_timeout: 5m"},
		{`probe: {attempts: "0"}`, "raise it to 1 or more, without quotes", "probe: {attempts: 1}"},
		{`probe: {attempts: "five"}`, "write one from 1 to 120, without quotes", "probe: {attempts: 5, window: 3s}"},
		{`keepalive: "{count: 5}"`, "write a mapping with idle, interval, count, without quotes", "keepalive: {count: 5}"},
		{`user_timeout: "20"`, "write 20s", `user_timeout: "20s"`},
		{"user_timeout: ~", "give a value or remove it", ""},
		{"ports: 7100", "write the list [7100]", "ports: [7100]"},
		{"ports: 7100 7200-7299", "write the list [7100, 7200-7299]", "ports: [7100, 7200-7299]"},
		{`ports: "[7100]"`, "write it as the list itself, without quotes", "ports: [7100]"},
		{"ports: [7199-7100]", "write 7100-7199", "ports: [7100-7199]"},
		{"ports: []", "remove the key", ""},

		{`except: ["::ffff:10.1.0.0/112"]`, "write 10.1.0.0/16", "except: [10.1.0.0/16]"},
		{"except: [10.1.1.1/16]", "write 10.1.0.0/16", "except: [10.1.0.0/16]"},
		{"except: [10.1.1.1]", "write 10.1.1.1/32", "except: [10.1.1.1/32]"},
		{`except: "10.1.1.1/32, 10.2.0.0/16"`, "write the list [10.1.1.1/32, 10.2.0.0/16]", "except: [10.1.1.1/32, 10.2.0.0/16]"},
		{"except: [11.0.0.0/16]", "remove it, or write a part of one of them", ""},

		{"user_timeout: 7s", "raise user_timeout to 15s", "user_timeout: 15s"},
		{"keepalive: {count: 100}", "raise user_timeout to 3m25s", "keepalive: {count: 100}, user_timeout: 3m25s"},
		{"probe: {window: 1s}", "raise window to 2.5s or lower attempts to 2", "probe: {window: 1s, attempts: 2}"},
		{"close_silent_after: 1s", "raise close_silent_after to 3s", "close_silent_after: 3s"},
		{"in_flight: rto_cap, user_timeout: 14s, keepalive: {count: 4}", "raise user_timeout to 15s", "in_flight: rto_cap, user_timeout: 15s"},
		{"in_flight: rto_cap, user_timeout: 10m", "lower user_timeout to 4m15s", "in_flight: rto_cap, user_timeout: 4m15s"},
		{"in_flight: rto_cap, user_timeout: 10m", "write in_flight: user_timeout", "in_flight: user_timeout, user_timeout: 10m"},
		{"in_flight: rto_cap, user_timeout: 3m, keepalive: {interval: 1s}", "lower user_timeout to 2m12s", "in_flight: rto_cap, user_timeout: 2m12s, keepalive: {interval: 1s}"},
		{"in_flight: rto_cap, user_timeout: 10m, keepalive: {idle: 5m}", "at most: write in_flight: user_timeout", "in_flight: user_timeout, user_timeout: 10m, keepalive: {idle: 5m}"},
		{"in_flight: rto_cap, user_timeout: 200s, keepalive: {idle: 5m}", "shorten keepalive, user_timeout ends at 4m15s with in_flight rto_cap", "in_flight: rto_cap, user_timeout: 200s, keepalive: {idle: 5s}"},

		{`app_probe: {send: {data: 'PING\r\n'}}`, `write "PING\r\n"`, `app_probe: {send: {data: "PING\r\n"}}`},
		{"app_probe: {send: {}}", `add data, such as data: "PING\r\n"`, `app_probe: {send: {data: "PING\r\n"}}`},
		{`app_probe: {send: {hex: "5"}}`, `such as "50 49 4e 47 0d 0a"`, `app_probe: {send: {hex: "50 49 4e 47 0d 0a"}}`},
		{"app_probe: {}", "such as http: {path: /healthz}", "app_probe: {http: {path: /healthz}}"},
		{"app_probe: {}, direction: inbound", "such as http: {port: 7101, path: /healthz}", "app_probe: {http: {port: 7101, path: /healthz}}, direction: inbound"},
		{"app_probe: {http: {path: healthz}}", "such as /healthz", "app_probe: {http: {path: /healthz}}"},
		{`app_probe: {http: {path: "/a b"}}`, "write %20", "app_probe: {http: {path: /a%20b}}"},
		{"app_probe: {http: {path: /50%}}", "write %25", "app_probe: {http: {path: /50%25}}"},
		{"existing: true", "write adopt or ignore", "existing: adopt"},
		{"silence: false", "or write off", "silence: off"},
		{"user_timout: 20s", "write user_timeout", "user_timeout: 20s"},
	} {
		whole := func(line string) string { return head + "  - {name: a, cidrs: [10.0.0.0/8], " + line + "}\n" }
		_, err := Parse("p", []byte(whole(tc.was)))
		if err == nil || !strings.Contains(err.Error(), tc.advice) {
			t.Errorf("%s: %v\nlacks %q", tc.was, err, tc.advice)
		}
		if _, err := Parse("p", []byte(whole(tc.is))); err != nil {
			t.Errorf("%s, as was advised: %v", tc.is, err)
		}
	}
}

// The same of whole files: what stands beside an entry's keys, and IPv6.
func TestAdviceIsTakenOfFiles(t *testing.T) {
	const name, peers = "{name: a, cidrs: [10.0.0.0/8]}", "peers: [{name: a, cidrs: [10.0.0.0/8]}]\n"
	six := func(rest string) string { return "version: 1\npeers: [{name: a, " + rest + "}]\n" }
	for _, tc := range []struct{ was, advice, is string }{
		{"version: \"1\"\n" + peers, `version "1" is text: write version: 1, without quotes`, "version: 1\n" + peers},
		{"version: 1.0\n" + peers, "write version: 1", "version: 1\n" + peers},
		{peers, "write version: 1", "version: 1\n" + peers},
		{"version: 1\npeers: a\n", "write a list of mappings with name and cidrs", "version: 1\npeers: [" + name + "]\n"},
		{"version: 1\npeers: \"" + "[]" + "\"\n", "write a list of mappings with name and cidrs", "version: 1\npeers: [" + name + "]\n"},
		{six("cidrs: fd00::/8"), `write the list ["fd00::/8"]`, six(`cidrs: ["fd00::/8"]`)},
		{six(`cidrs: "[10.0.0.0/8]"`), "without quotes", six("cidrs: [10.0.0.0/8]")},
		{six(`cidrs: "10.0.0.0/8,fd00::/8"`), `write the list [10.0.0.0/8, "fd00::/8"]`, six(`cidrs: [10.0.0.0/8, "fd00::/8"]`)},
		{six(`cidrs: ["fe80::1%eth0/64"]`), "write fe80::/64", six(`cidrs: ["fe80::/64"]`)},
		{six(`cidrs: ["::ffff:0:0/96"]`), "write 0.0.0.0/0", six("cidrs: [0.0.0.0/0]")},
		{six(`cidrs: ["::/0"], except: ["::ffff:0:0/96"]`), "or remove it where cidrs are IPv6 alone, which never covers IPv4", six(`cidrs: ["::/0"]`)},
		{six(`cidrs: ["::ffff:10.0.0.1"]`), "write 10.0.0.1/32", six("cidrs: [10.0.0.1/32]")},
		{"version: 1\nlimits: {closes_per_second: {per_node: 9, per_peer: 10}}\n" + peers, "raise per_node to 10", "version: 1\nlimits: {closes_per_second: {per_node: 10, per_peer: 10}}\n" + peers},
		{"version: 1\nlimits: {closes_per_second: {per_node: \"9\"}}\n" + peers, "write 9, without quotes", "version: 1\nlimits: {closes_per_second: {per_node: 9}}\n" + peers},
		{strings.Replace(six("cidrs: [10.0.0.0/8]"), "name: a", "name: Redis 1", 1), "write redis_1", strings.Replace(six("cidrs: [10.0.0.0/8]"), "name: a", "name: redis_1", 1)},
	} {
		_, err := Parse("p", []byte(tc.was))
		if err == nil || !strings.Contains(err.Error(), tc.advice) {
			t.Errorf("%s: %v\nlacks %q", tc.was, err, tc.advice)
		}
		if _, err := Parse("p", []byte(tc.is)); err != nil {
			t.Errorf("%s, as was advised: %v", tc.is, err)
		}
	}
}
