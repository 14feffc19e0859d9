// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/conn"
)

func TestAppProbe(t *testing.T) {
	for _, tt := range []struct {
		text string
		want AppProbe
	}{
		{"{http: {}}", AppProbe{Kind: AppHTTP, Path: "/", Timeout: 10 * time.Second, CloseHung: true}},
		{"{http: {port: 7101, path: /healthz}, timeout: 10s, on_hung: close}",
			AppProbe{Kind: AppHTTP, Port: 7101, Path: "/healthz", Timeout: 10 * time.Second, CloseHung: true}},
		{"{http: {path: '/a%20b//c?full=1&x=%25'}}",
			AppProbe{Kind: AppHTTP, Path: "/a%20b//c?full=1&x=%25", Timeout: 10 * time.Second, CloseHung: true}},
		{"{http: {path: //a/b}}", AppProbe{Kind: AppHTTP, Path: "//a/b", Timeout: 10 * time.Second, CloseHung: true}},
		{"{grpc: {}, on_hung: none}", AppProbe{Kind: AppGRPC, Timeout: 10 * time.Second}},
		{"{grpc: {service: ''}}", AppProbe{Kind: AppGRPC, Timeout: 10 * time.Second, CloseHung: true}},
		{"{timeout: 1500ms, grpc: {service: buffer.v1.Buffer, port: 1}}",
			AppProbe{Kind: AppGRPC, Port: 1, Service: "buffer.v1.Buffer", Timeout: 1500 * time.Millisecond, CloseHung: true}},
		{`{send: {data: "PING\r\n", port: 65535}}`,
			AppProbe{Kind: AppSend, Port: 65535, Send: []byte("PING\r\n"), Timeout: 10 * time.Second, CloseHung: true}},
		{`{send: {data: "\0\x7f\\ \t"}}`, AppProbe{Kind: AppSend, Send: []byte("\x00\x7f\\ \t"), Timeout: 10 * time.Second, CloseHung: true}},
		{`{send: {data: 0x10}}`, AppProbe{Kind: AppSend, Send: []byte("0x10"), Timeout: 10 * time.Second, CloseHung: true}},
		{`{send: {hex: "00 00 00 08 04D2162f"}}`,
			AppProbe{Kind: AppSend, Send: []byte{0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f}, Timeout: 10 * time.Second, CloseHung: true}},
		{`{send: {hex: 0800}}`, AppProbe{Kind: AppSend, Send: []byte{8, 0}, Timeout: 10 * time.Second, CloseHung: true}},
	} {
		p, err := Parse("p", []byte(head+"  - {name: a, cidrs: [10.0.0.0/8], app_probe: "+tt.text+"}\n"))
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		if diff := cmp.Diff(&tt.want, p.Peers[0].AppProbe); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, diff)
		}
	}
}

// Just above the limits.
func TestAppProbeTooLong(t *testing.T) {
	for text, want := range map[string]string{
		"http: {path: /" + strings.Repeat("p", maxPath) + "}":           "http path has 1025 bytes, more than 1024: choose a shorter one",
		"grpc: {service: " + strings.Repeat("s", maxService+1) + "}":    "grpc service has 256 bytes, more than 255: choose a shorter one",
		"send: {data: " + strings.Repeat("d", maxSend+1) + "}":          "data has 4097 bytes, more than 4096: choose a shorter question",
		"send: {hex: '" + strings.Repeat("0d ", maxSend+1) + "'}":       "hex has 4097 bytes, more than 4096: choose a shorter question",
		"grpc: {service: s}, timeout: 60001ms":                          "app_probe timeout 60001ms is above 1m: lower it to 1m or less",
		"send: {port: 65536, data: '" + strings.Repeat("d", 100) + "'}": "send port 65536 is above 65535: lower it to 65535 or less",
	} {
		_, err := Parse("p", []byte(head+"  - {name: a, cidrs: [10.0.0.0/8], app_probe: {"+text+"}}\n"))
		if err == nil || !strings.HasSuffix(err.Error(), ": "+want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", clip(text), err, want)
		}
	}
}

// The client at the other end of an inbound connection is asked only where the
// entry can mean nobody else.
func TestAppProbeOf(t *testing.T) {
	p := mustParse(t, head+`
  - {name: both, cidrs: [10.1.0.0/16], app_probe: {http: {port: 7101}}}
  - {name: out, cidrs: [10.2.0.0/16], app_probe: {http: {}}, direction: outbound}
  - {name: in, cidrs: [10.3.0.0/16], app_probe: {http: {port: 7101}}, direction: inbound}
  - {name: none, cidrs: [10.4.0.0/16]}
`)
	for i, want := range [][2]bool{{true, false}, {true, false}, {true, true}, {false, false}} {
		peer := &p.Peers[i]
		for j, direction := range []conn.Direction{conn.Outbound, conn.Inbound} {
			if !peer.Directions.Has(direction) {
				continue
			}
			if got := peer.AppProbeOf(direction) != nil; got != want[j] {
				t.Errorf("%s, %s: asked %t, want %t", peer.Name, direction, got, want[j])
			}
		}
	}
}
