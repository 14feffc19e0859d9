// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// stream writes random bytes until it is told to stop and returns their hash.
func stream(to *net.TCPConn, seed uint64, stop *atomic.Bool) (hash.Hash, error) {
	var key [32]byte
	key[0] = byte(seed)
	random, sum := rand.NewChaCha8(key), sha256.New()
	b := make([]byte, 64<<10)
	for !stop.Load() {
		_, _ = random.Read(b)
		sum.Write(b)
		if _, err := to.Write(b); err != nil {
			return nil, err
		}
	}
	return sum, to.CloseWrite()
}

// load streams both ways through a pair until the returned function is called,
// which reports a direction that did not arrive byte for byte.
func (p *pair) load(t *testing.T) (finish func()) {
	var stop atomic.Bool
	var wg sync.WaitGroup
	var sent, got [2]string
	ends := [2]*net.TCPConn{p.client, p.server}
	for i := range ends {
		_ = ends[i].SetDeadline(time.Now().Add(time.Minute))
		wg.Go(func() {
			sum, err := stream(ends[i], uint64(i), &stop)
			sent[i] = fmt.Sprint(err)
			if err == nil {
				sent[i] = fmt.Sprintf("%x", sum.Sum(nil))
			}
		})
		wg.Go(func() {
			sum := sha256.New()
			n, err := io.Copy(sum, ends[1-i])
			got[i] = fmt.Sprintf("%x", sum.Sum(nil))
			t.Logf("direction %d: %d MB, %v", i, n>>20, err)
		})
	}
	return func() {
		stop.Store(true)
		wg.Wait()
		for i := range sent {
			if sent[i] != got[i] {
				t.Errorf("direction %d: sent %s, arrived %s", i, sent[i], got[i])
			}
		}
	}
}

// Ten thousand probes into a connection loaded both ways change no byte. The
// same number of route look-ups, which cost the machine as much and send
// nothing, is the yardstick for what else happens under such a load.
func TestProbesChangeNothing(t *testing.T) {
	probesChangeNothing(t, newBed(t), kinds[:2])
}

// Nor with a sender without selective acknowledgments, which counts what answers our probes
// as duplicates. Under such a load segments overtake each other, with no probes, too: from
// when on duplicates do harm is seen without it (TestAnswersAreDuplicates).
func TestProbesChangeNothingWithoutSACK(t *testing.T) {
	b := newBed(t)
	sysctlIn(t, b.Client, "ipv4/tcp_sack", "0")
	for _, stamps := range []string{"1", "0"} {
		sysctlIn(t, b.Client, "ipv4/tcp_timestamps", stamps)
		t.Run("timestamps "+stamps, func(t *testing.T) { probesChangeNothing(t, b, kinds[:1]) })
	}
}

// recoveries is how often a sender of the client's took duplicates, or what was told to be
// missing, for a loss.
func (b *bed) recoveries(t *testing.T) uint64 {
	t.Helper()
	return netstat(t, b.Client, "TCPRenoRecovery") + netstat(t, b.Client, "TCPSackRecovery")
}

func probesChangeNothing(t *testing.T, b *bed, kinds []kind) {
	probes := labtest.Fewer(10_000)
	for _, k := range kinds {
		for _, what := range []string{"Route", "Send"} {
			t.Run(k.name+" "+what, func(t *testing.T) {
				p := connect(t, b, k)
				s := p.snapshot(t)
				finish := p.load(t)
				started, before := time.Now(), b.recoveries(t)
				for range probes {
					p.look(t, s)
					if err := both[what](b, s); err != nil {
						t.Error(err)
						break
					}
				}
				took := time.Since(started)
				finish()
				t.Logf("%d in %v; the client took something for a loss %d times; segments retransmitted by client %d, by server %d", probes, took,
					b.recoveries(t)-before, labtest.TCPInfo(t, p.client).Total_retrans, labtest.TCPInfo(t, p.server).Total_retrans)
			})
		}
	}
}

func BenchmarkSend(b *testing.B) {
	bed := newBed(b)
	for _, k := range kinds[:2] {
		s := connect(b, bed, k).snapshot(b)
		b.Run(k.name+"/from another namespace", func(b *testing.B) {
			for b.Loop() {
				if _, err := New().Send(bed.Client, s); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(k.name+"/from its namespace", func(b *testing.B) {
			in(b, bed.Client, func() error {
				for b.Loop() {
					if _, err := New().Send(bed.Client, s); err != nil {
						return err
					}
				}
				return nil
			})
		})
		b.Run(k.name+"/route", func(b *testing.B) {
			for b.Loop() {
				if err := New().Route(bed.Client, s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSegment(b *testing.B) {
	s := snapshot("[fd91::2]:40000", "[fd91::3]:7100", func(s *conn.Snapshot) { s.Timestamps = true })
	for b.Loop() {
		var buf [maxSegment]byte
		if len(keepalive(&s, time.Second).append(buf[:0])) != maxSegment {
			b.Fatal("wrong length")
		}
	}
}
