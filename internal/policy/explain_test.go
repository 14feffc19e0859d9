// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
)

func TestExplain(t *testing.T) {
	p := mustParse(t, `version: 1
peers:
  - name: buffer
    cidrs: [10.20.0.0/16, 10.20.1.0/24, "fd00:20::/64"]
    except: [10.20.9.9/32]
    ports: [7100-7199]
  - name: wide
    cidrs:
      - 10.0.0.0/8
    direction: outbound
    ports: [80, 82, 84, 86, 88, 90, 92]
    user_timeout: 40s
    keepalive: {idle: 10s, interval: 1s}
    probe: {window: 1m, attempts: 7}
  - name: one
    cidrs: [10.20.0.0/16]
    ports: [7200]
    keepalive: {idle: 5s, interval: 10s, count: 1}
`)
	var out []string
	for _, service := range []string{
		"10.20.1.2:7100", "10.20.2.2:80", "[fd00:20::1]:7150", "[::ffff:10.20.9.9]:7100",
		"10.20.9.9:7300", "192.0.2.1:80", "10.20.1.2:7200", "[fd00:20::1%eth0]:7150",
	} {
		out = append(out, p.Explain(netip.MustParseAddrPort(service)).String())
	}
	golden(t, "explain.txt", strings.Join(out, "\n\n")+"\n")
}

// What is not the default is named, and who is asked in which direction.
func TestExplainJudging(t *testing.T) {
	p := mustParse(t, `version: 1
peers:
  - name: strict
    cidrs: [10.1.0.0/16]
    app_override: enforce
    kernel_sockets: manage
    app_probe: {http: {port: 7101, path: /healthz}}
    close_silent_after: 10m
    silence: 2s
  - name: loose
    cidrs: [10.2.0.0/16]
    app_override: allow
    connect_timeout: 2500ms
    app_probe: {grpc: {}, timeout: 1500ms, on_hung: none}
    direction: outbound
  - name: watched
    cidrs: [10.3.0.0/16]
    action: observe
    connect_timeout: 3s
    app_probe: {send: {port: 6379, data: "PING\r\n"}}
    close_silent_after: 3s
    silence: 30s
    direction: inbound
  - name: service
    cidrs: [10.4.0.0/16]
    app_probe: {grpc: {service: buffer.v1.Buffer}}
    action: observe
    direction: outbound
`)
	var out []string
	for _, service := range []string{"10.1.0.1:7100", "10.2.0.1:7100", "10.3.0.1:7100", "10.4.0.1:7100"} {
		out = append(out, p.Explain(netip.MustParseAddrPort(service)).String())
	}
	golden(t, "explain_judging.txt", strings.Join(out, "\n\n")+"\n")
}

// Explain and Match speak of the same peer.
func TestExplainMatches(t *testing.T) {
	p := mustParse(t, Example())
	for _, service := range []string{"10.20.1.2:7100", "10.30.4.1:5432", "10.20.9.9:7100", "10.20.1.2:1", "[fd00:20::7]:7199"} {
		s := netip.MustParseAddrPort(service)
		e := p.Explain(s, conn.Inbound, conn.Outbound)
		if len(e.Answers) != 2 || e.Answers[0].Direction != conn.Inbound || e.Answers[1].Direction != conn.Outbound {
			t.Fatalf("%s: answers %+v", service, e.Answers)
		}
		in, _ := p.Match(netip.AddrPortFrom(s.Addr(), 40000), s.Port(), conn.Inbound)
		out, _ := p.Match(s, 40000, conn.Outbound)
		if e.Answers[0].Peer != in || e.Answers[1].Peer != out {
			t.Errorf("%s: explained %s and %s, matched %s and %s", service,
				nameOf(e.Answers[0].Peer), nameOf(e.Answers[1].Peer), nameOf(in), nameOf(out))
		}
	}
}
