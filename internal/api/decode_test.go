// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/report"
)

// badReports are the bodies that are refused, and what their senders read.
var badReports = []struct{ name, body, want string }{
	{"empty", "", `the body is empty, want a JSON object such as {"peer": "10.20.1.2:7100", "local": "10.1.1.1:40122", "elapsed_ms": 2000}`},
	{"blank", " \n", `the body is empty, want a JSON object such as {"peer": "10.20.1.2:7100", "local": "10.1.1.1:40122", "elapsed_ms": 2000}`},
	{"no JSON", "peer=1", `the body is not valid JSON at byte 1: invalid character 'p' looking for beginning of value`},
	{"cut off", `{"local": "10.1.1.1:1"`, `the body is not valid JSON at byte 22: unexpected end of JSON input`},
	{"trailing data", `{"local": "10.1.1.1:1"} {}`, `the body is not valid JSON at byte 25: invalid character '{' after top-level value`},
	{"trailing comma", `{"local": "10.1.1.1:1",}`, `the body is not valid JSON at byte 24: invalid character '}' looking for beginning of object key string`},
	{"array", `[]`, `the body is an array, want a JSON object such as {"peer": "10.20.1.2:7100", "local": "10.1.1.1:40122", "elapsed_ms": 2000}`},
	{"string", `"local"`, `the body is a string, want a JSON object such as {"peer": "10.20.1.2:7100", "local": "10.1.1.1:40122", "elapsed_ms": 2000}`},
	{"null", `null`, `the body is null, want a JSON object such as {"peer": "10.20.1.2:7100", "local": "10.1.1.1:40122", "elapsed_ms": 2000}`},

	{"unknown field", `{"locals": "10.1.1.1:1"}`, `unknown field "locals": the fields are peer, local, cookie and elapsed_ms`},
	{"field in capitals", `{"Local": "10.1.1.1:1"}`, `unknown field "Local": the fields are peer, local, cookie and elapsed_ms`},
	{"identity in the body", `{"cookie": 1, "uid": 0}`, `unknown field "uid": the fields are peer, local, cookie and elapsed_ms`},
	{"long field", `{"` + strings.Repeat("x", 1000) + `": 1}`, `unknown field "` + strings.Repeat("x", 64) + `...": the fields are peer, local, cookie and elapsed_ms`},
	{"given twice", `{"local": "10.1.1.1:1", "local": "10.1.1.1:2"}`, `field "local" is given twice`},
	{"given twice, escaped", `{"cookie": 1, "\u0063ookie": 1}`, `field "cookie" is given twice`},

	{"peer no string", `{"peer": 7100}`, `field "peer" is 7100, want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"`},
	{"local null", `{"local": null}`, `field "local" is null, want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"`},
	{"local object", `{"local": {}}`, `field "local" is an object, want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"`},
	{"peer empty", `{"peer": ""}`, `field "peer" is "", want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"; names are not resolved`},
	{"peer a name", `{"peer": "db:5432"}`, `field "peer" is "db:5432", want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"; names are not resolved`},
	{"peer without port", `{"peer": "10.1.1.1"}`, `field "peer" is "10.1.1.1", want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"; names are not resolved`},
	{"v6 without brackets", `{"local": "fd00::1:80"}`, `field "local" is "fd00::1:80", want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"; names are not resolved`},
	{"port too high", `{"local": "10.1.1.1:65536"}`, `field "local" is "10.1.1.1:65536": a port is 1 to 65535`},
	{"port no number", `{"local": "10.1.1.1:-1"}`, `field "local" is "10.1.1.1:-1", want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"; names are not resolved`},
	{"port 0", `{"local": "10.1.1.1:0"}`, `field "local" is "10.1.1.1:0": a port is 1 to 65535`},
	{"wildcard", `{"local": "0.0.0.0:80"}`, `field "local" is "0.0.0.0:80": a connection has no wildcard address`},
	{"mapped wildcard", `{"peer": "[::ffff:0.0.0.0]:80"}`, `field "peer" is "[::ffff:0.0.0.0]:80": a connection has no wildcard address`},
	{"two families", `{"local": "10.1.1.1:1", "peer": "[fd00::1]:2"}`, `fields "local" and "peer" are of different address families: 10.1.1.1:1 and [fd00::1]:2`},

	{"cookie a string", `{"cookie": "71"}`, `field "cookie" is a string, want a whole number from 1 to 18446744073709551615: the socket's SO_COOKIE`},
	{"cookie 0", `{"cookie": 0}`, `field "cookie" is 0, want a whole number from 1 to 18446744073709551615: the socket's SO_COOKIE`},
	{"cookie negative", `{"cookie": -1}`, `field "cookie" is -1, want a whole number from 1 to 18446744073709551615: the socket's SO_COOKIE`},
	{"cookie too large", `{"cookie": 18446744073709551616}`, `field "cookie" is 18446744073709551616, want a whole number from 1 to 18446744073709551615: the socket's SO_COOKIE`},
	{"cookie a float", `{"cookie": 7.1e1}`, `field "cookie" is 7.1e1, want a whole number from 1 to 18446744073709551615: the socket's SO_COOKIE`},

	{"age negative", `{"cookie": 1, "elapsed_ms": -1}`, `field "elapsed_ms" is -1, want a whole number from 0 to 3600000 (an hour): the milliseconds since the request was written`},
	{"age over an hour", `{"cookie": 1, "elapsed_ms": 3600001}`, `field "elapsed_ms" is 3600001, want a whole number from 0 to 3600000 (an hour): the milliseconds since the request was written`},
	{"age overflows", `{"cookie": 1, "elapsed_ms": 9223372036854775808}`, `field "elapsed_ms" is 9223372036854775808, want a whole number from 0 to 3600000 (an hour): the milliseconds since the request was written`},
	{"age a fraction", `{"cookie": 1, "elapsed_ms": 0.5}`, `field "elapsed_ms" is 0.5, want a whole number from 0 to 3600000 (an hour): the milliseconds since the request was written`},
	{"age a string", `{"cookie": 1, "elapsed_ms": "2s"}`, `field "elapsed_ms" is a string, want a whole number from 0 to 3600000 (an hour): the milliseconds since the request was written`},
	{"age a boolean", `{"cookie": 1, "elapsed_ms": true}`, `field "elapsed_ms" is true, want a whole number from 0 to 3600000 (an hour): the milliseconds since the request was written`},
	{"age a list", `{"cookie": 1, "elapsed_ms": [1]}`, `field "elapsed_ms" is an array, want a whole number from 0 to 3600000 (an hour): the milliseconds since the request was written`},

	{"no socket", `{}`, `the report names no socket: give "local" (getsockname), "cookie" (SO_COOKIE) or, for all sockets to it, "peer" (getpeername)`},
	{"age alone", `{"elapsed_ms": 5}`, `the report names no socket: give "local" (getsockname), "cookie" (SO_COOKIE) or, for all sockets to it, "peer" (getpeername)`},
}

func TestParseReportRefuses(t *testing.T) {
	for _, tc := range badReports {
		t.Run(tc.name, func(t *testing.T) {
			b, err := parseReport([]byte(tc.body))
			if err == nil || err.Error() != tc.want {
				t.Errorf("body %s:\n got %v\nwant %s", tc.body, err, tc.want)
			}
			if b != (body{}) {
				t.Errorf("a value beside the error: %+v", b)
			}
		})
	}
}

func TestParseReport(t *testing.T) {
	local, peer := netip.MustParseAddrPort("10.1.1.1:40122"), netip.MustParseAddrPort("10.20.1.2:7100")
	v6 := netip.MustParseAddrPort("[fe80::1]:2")
	for _, tc := range []struct {
		body string
		want body
	}{
		{exampleReport, body{local: local, peer: peer, elapsed: 2 * time.Second}},
		{`{"local": "10.1.1.1:40122"}`, body{local: local}},
		{` {"cookie":18446744073709551615,"elapsed_ms":3600000} `, body{cookie: 1<<64 - 1, elapsed: time.Hour}},
		{`{"peer": "10.20.1.2:7100", "elapsed_ms": 2000}`, body{peer: peer, elapsed: 2 * time.Second}},
		{`{"cookie": 71, "peer": "10.20.1.2:7100"}`, body{cookie: 71, peer: peer}},
		{`{"local": "[::ffff:10.1.1.1]:40122", "peer": "10.20.1.2:7100"}`, body{local: local, peer: peer}},
		{`{"local": "[fe80::1%eth0]:2", "elapsed_ms": 0}`, body{local: v6}},
	} {
		got, err := parseReport([]byte(tc.body))
		if err != nil || got != tc.want {
			t.Errorf("body %s: got %+v, %v; want %+v", tc.body, got, err, tc.want)
		}
	}
}

// Whatever the client can send is understood.
func TestParseReportKnowsTheClientsFields(t *testing.T) {
	data, err := json.Marshal(report.Request{Peer: "10.20.1.2:7100", Local: "10.1.1.1:40122", Cookie: 71, ElapsedMS: 2000})
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseReport(data)
	if err != nil {
		t.Fatal(err)
	}
	want := body{netip.MustParseAddrPort("10.1.1.1:40122"), netip.MustParseAddrPort("10.20.1.2:7100"), 71, 2 * time.Second}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func FuzzParseReport(f *testing.F) {
	for _, tc := range badReports {
		f.Add([]byte(tc.body))
	}
	f.Add([]byte(exampleReport))
	f.Add([]byte(`{"local": "[fe80::1%eth0]:2", "cookie": 3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := parseReport(data)
		if err != nil {
			if b != (body{}) {
				t.Fatalf("value %+v beside error %v", b, err)
			}
			if len(err.Error()) > 600 {
				t.Fatalf("message of %d bytes", len(err.Error()))
			}
			return
		}
		if !b.local.IsValid() && b.cookie == 0 && !b.peer.IsValid() {
			t.Fatal("accepted, but names no socket")
		}
		if b.elapsed < 0 || b.elapsed > time.Hour {
			t.Fatalf("accepted an age of %s", b.elapsed)
		}
		for _, ap := range []netip.AddrPort{b.local, b.peer} {
			if ap.IsValid() && (ap.Port() == 0 || ap.Addr().Is4In6() || ap.Addr().Zone() != "" || ap.Addr().IsUnspecified()) {
				t.Fatalf("accepted address %s", ap)
			}
		}
		// What is accepted means the same to encoding/json.
		var r report.Request
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatalf("accepted %q, encoding/json says %v", data, err)
		}
		if time.Duration(r.ElapsedMS)*time.Millisecond != b.elapsed || r.Cookie != b.cookie || (r.Local != "") != b.local.IsValid() {
			t.Fatalf("read %+v, encoding/json %s", b, cmp.Diff(report.Request{}, r))
		}
	})
}
