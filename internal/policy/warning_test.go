// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// warningsOf returns those of one entry, without the place.
func warningsOf(t *testing.T, line string, on Ground) (list []string) {
	t.Helper()
	for _, w := range mustParse(t, head+"  - {name: a, cidrs: [10.0.0.0/8], "+line+"}\n").Warnings(on) {
		list = append(list, strings.TrimPrefix(w.Message, "warning: "))
	}
	return list
}

// Values of which one lost packet may end a connection that is well are warned of, and
// what is written as the warning says is warned of no more.
func TestWarnsOfOneLostPacket(t *testing.T) {
	old, can := Ground{}, Ground{RTOCap: true}
	for _, tc := range []struct {
		was  string
		on   Ground
		want string // "" is no warning
		is   string // as advised
	}{
		{"user_timeout: 7s, keepalive: {count: 1}", old, `user_timeout 7s of "a" forgives no lost keepalive (idle 5s, interval 2s), so that one lost packet may end a connection that is idle and well: raise user_timeout to 8s, or shorten keepalive`, "user_timeout: 8s, keepalive: {count: 1}"},
		{"user_timeout: 110s, keepalive: {idle: 100s, interval: 1s, count: 10}", old, "raise user_timeout to 1m54s, or", "user_timeout: 114s, keepalive: {idle: 100s, interval: 1s, count: 10}"},
		{"user_timeout: 15s, keepalive: {interval: 8s, count: 1}", old, "", ""},
		{"user_timeout: 15s, keepalive: {interval: 8s, count: 1}, in_flight: rto_cap", can, "raise user_timeout to 21s", "user_timeout: 21s, keepalive: {interval: 8s, count: 1}, in_flight: rto_cap"},
		{"user_timeout: 14s, keepalive: {idle: 10s, interval: 4s, count: 1}, in_flight: auto", can, "raise user_timeout to 18s", "user_timeout: 18s, keepalive: {idle: 10s, interval: 4s, count: 1}, in_flight: auto"},
		{"user_timeout: 250s, keepalive: {idle: 200s, interval: 50s, count: 1}, in_flight: rto_cap", can, "idle and well: shorten keepalive", "user_timeout: 250s, keepalive: {idle: 150s, interval: 50s, count: 1}, in_flight: rto_cap"},
		{"probe: {window: 500ms, attempts: 1}", old, `probe attempts 1 of "a" asks a connection that is judged only once, so that one lost packet may close one that is well: raise attempts to 2 or more and window to 1s`, "probe: {window: 1s, attempts: 2}"},
		{"probe: {attempts: 1}", old, "well: raise attempts to 2 or more", "probe: {attempts: 2}"},
		{"", can, "", ""},
	} {
		got := strings.Join(warningsOf(t, tc.was, tc.on), "\n")
		if (tc.want == "") != (got == "") || !strings.HasSuffix(got, tc.want) && !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.was, got, tc.want)
		}
		if got := warningsOf(t, tc.is, tc.on); len(got) > 0 {
			t.Errorf("%s, as was advised: %q", tc.is, got)
		}
	}
}

// Text that ends no line is warned of where silence closes, and bytes that are no text
// are not.
func TestWarnsOfAnUnfinishedLine(t *testing.T) {
	for _, tc := range []struct{ probe, want string }{
		{"{send: {data: PING}}", `data of "a" ends no line, and a peer that reads lines stays silent for that, which closes connections that are well: write "PING\r\n", or write on_hung: none`},
		{`{send: {data: "PING\r"}}`, `write "PING\r\n"`},
		{`{send: {data: "say \"x\""}}`, `write "say \"x\"\r\n"`},
		{"{send: {data: " + strings.Repeat("x", 100) + "}}", `put \r\n at its end`},
		{`{send: {hex: "50 49 4e 47"}}`, `hex of "a" ends no line, and a peer that reads lines stays silent for that, which closes connections that are well: put 0d 0a at its end, or write on_hung: none`},
		{`{send: {data: "PING\r\n"}}`, ""},
		{`{send: {data: "PING\n"}}`, ""},
		{`{send: {hex: "50 49 4e 47 0d 0a"}}`, ""},
		{`{send: {data: PING}, on_hung: none}`, ""},
		{`{send: {hex: "00 00 00 08 04 d2 16 2f"}}`, ""},
		{`{send: {data: "PING\0"}}`, ""},
		{"{http: {}}", ""},
	} {
		got := strings.Join(warningsOf(t, "app_probe: "+tc.probe, Ground{}), "\n")
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.probe, got, tc.want)
		}
	}
}

// Warnings have the places of what they are about.
func TestWarningPlaces(t *testing.T) {
	p := mustParse(t, `version: 1
defaults:
  user_timeout: 7s
  keepalive: {count: 1}
peers:
  - {name: inherits, cidrs: [10.0.0.0/24]}
  - name: gives
    cidrs: [10.0.1.0/24]
    keepalive: {idle: 4s}
    probe: {attempts: 1}
    app_probe: {send: {data: PING}}
  - {name: enough, cidrs: [10.0.2.0/24], user_timeout: 8s}
`)
	var places []string
	for _, w := range p.Warnings(Ground{}) {
		where, _, _ := strings.Cut(w.Error(), ": warning: ")
		places = append(places, where)
	}
	want := "policy.yaml:6:5 policy.yaml:10:23 policy.yaml:11:30"
	if got := strings.Join(places, " "); got != want {
		t.Errorf("places %s, want %s", got, want)
	}
}

// Where the limit of the retransmission timeout cannot reach the user timeout, auto is
// the user timeout, and says so; what it stands in for it reaches.
func TestAutoReachesTheUserTimeout(t *testing.T) {
	on := Ground{RTOCap: true}
	for _, tc := range []struct {
		line   string
		capped bool
		says   string
	}{
		{"user_timeout: 255s", true, "auto: 15 retransmissions"},
		{"user_timeout: 255001ms", false, "auto: user_timeout, since rto_cap needs one of 4m15s or less with this keepalive"},
		{"user_timeout: 10m", false, "auto: user_timeout, since rto_cap needs one of 4m15s or less with this keepalive"},
		{"user_timeout: 132s, keepalive: {interval: 1s}", true, "auto: 15 retransmissions"},
		{"user_timeout: 133s, keepalive: {interval: 1s}", false, "auto: user_timeout, since rto_cap needs one of 2m12s or less with this keepalive"},
	} {
		p := mustParse(t, head+"  - {name: a, cidrs: [10.0.0.0/8], in_flight: auto, "+tc.line+"}\n")
		peer := &p.Peers[0]
		if got := peer.Capped(true); got != tc.capped {
			t.Errorf("%s: capped %t", tc.line, got)
		}
		f, o := peer.FiguresOn(on), peer.Options
		if f.InFlightBound < o.UserTimeout-time.Second || f.IdleBound < o.UserTimeout-o.Interval {
			t.Errorf("%s: ends in flight at %s, idle at %s", tc.line, f.InFlightBound, f.IdleBound)
		}
		if text := p.ExplainOn(on, netip.MustParseAddrPort("10.0.0.1:80"), conn.Outbound).String(); !strings.Contains(text, tc.says) {
			t.Errorf("%s lacks %q:\n%s", tc.line, tc.says, text)
		}
	}
}
