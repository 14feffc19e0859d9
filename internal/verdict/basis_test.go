// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// again writes a basis as JSON and reads the input from it.
func again(t *testing.T, in Input, report time.Duration) Input {
	t.Helper()
	b, err := json.Marshal(in.Basis(report))
	if err != nil {
		t.Fatal(err)
	}
	var basis Basis
	if err := json.Unmarshal(b, &basis); err != nil {
		t.Fatal(err)
	}
	out, err := basis.Input()
	if err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return out
}

// disturb gives about n of the fields below v another value. It reaches every field
// there is, so that one that Decide reads and the basis does not keep is found.
func disturb(r *rand.Rand, v reflect.Value, n int) {
	var leaves []reflect.Value
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		if v.Kind() != reflect.Struct {
			leaves = append(leaves, v)
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				walk(v.Field(i))
			}
		}
	}
	walk(v)
	for range n {
		leaf := leaves[r.IntN(len(leaves))]
		switch leaf.Interface().(type) {
		case conn.State:
			leaf.SetUint(1 + r.Uint64N(12))
		case conn.Direction:
			leaf.SetUint(r.Uint64N(3))
		case End:
			leaf.SetUint(r.Uint64N(5))
		case App:
			leaf.SetUint(r.Uint64N(4))
		case time.Duration:
			leaf.SetInt(leaf.Int() + int64(r.IntN(5)-2)*r.Int64N(int64(3*time.Second)))
		case bool:
			leaf.SetBool(!leaf.Bool())
		case string:
			leaf.SetString([]string{"", ReasonNoPolicy, ReasonOlder}[r.IntN(3)])
		case int:
			leaf.SetInt(r.Int64N(7))
		default:
			if leaf.CanUint() {
				leaf.SetUint(leaf.Uint() + uint64(r.IntN(3)))
			}
		}
	}
}

// TestDecideAgain: from the basis of a verdict, through JSON, comes the same one,
// whatever the evidence; every verdict and many reasons come up.
func TestDecideAgain(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	words, reasons := make(map[Word]int), make(map[string]bool)
	for range 8_000 {
		in := Input{Sent: sent, Before: look(now, 90*time.Second, 95*time.Second), Probe: asked}
		in.After = with(look(end, 90*time.Second, 95*time.Second), func(s *conn.Snapshot) { s.ProbesOut = 5 })
		if r.IntN(3) == 0 {
			in.After.Snapshot.AckStamp++ // answered
			in.App, in.SilentLimit = App(r.IntN(4)), time.Duration(r.IntN(2))*time.Second
		}
		if r.IntN(3) == 0 { // payload came
			in.After.Snapshot.DataAge, in.Before.Snapshot.DataAge = 100*time.Millisecond, 100*time.Millisecond
			in.Before.Snapshot.PacketAge, in.Before.Snapshot.RcvNxt = 0, in.Before.Snapshot.CopiedSeq+uint32(r.IntN(2))
		}
		in.Before.Snapshot.SndUna, in.After.Snapshot.SndUna = 1<<32-1, 1<<32-1
		disturb(r, reflect.ValueOf(&in).Elem(), r.IntN(6))
		if !in.Probe.Done {
			in.Probe = Probe{}
		}
		got := again(t, in, now+time.Duration(r.IntN(int(time.Second))))
		want := Decide(in)
		if v := Decide(got); v != want {
			t.Fatalf("%+v, at first %+v, on %+v", v, want, in)
		}
		if !in.Before.Found {
			in.Evidence() // of a first look that found nothing there is none
		} else if d := cmp.Diff(in.Evidence(), got.Evidence()); d != "" {
			t.Fatalf("evidence (-before +again):\n%s", d)
		}
		words[want.Word]++
		reasons[want.Reason] = true
	}
	for _, w := range Words() {
		if words[w] == 0 {
			t.Errorf("no %s among %v", w, words)
		}
	}
	if len(reasons) < 12 {
		t.Errorf("only the reasons %v", reasons)
	}
}

// TestBasisWhole: whatever an input has beside its looks is kept, and reaches the
// record.
func TestBasisWhole(t *testing.T) {
	in := Input{
		Sent: 1, Unmanaged: ReasonOlder, Before: Look{Ended: EndClosed}, After: Look{Ended: EndReset},
		Probe: Probe{Done: true, Sent: 2, Wanted: 3, Blocked: true, NoRoute: true, LinkDown: true, Multipath: true, Apart: true, Astray: true, LocalLeg: true, LegUnknown: true, Resent: true, Window: 4},
		App:   AppSilent, CloseHung: true, SilentLimit: 5,
	}
	for _, v := range []any{in, in.Probe} {
		v := reflect.ValueOf(v)
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("%s.%s is not tried here", v.Type(), v.Type().Field(i).Name)
			}
		}
	}
	if got := again(t, in, 0); got != in {
		t.Errorf("%+v, at first %+v", got, in)
	}
}

// TestBasisNoAddress: a basis may be given away; it has no sequence number either
// that would help to forge a segment.
func TestBasisNoAddress(t *testing.T) {
	in := Input{Before: look(now, now, now), After: look(end, now, now), Probe: asked}
	for _, l := range []*Look{&in.Before, &in.After} {
		l.Snapshot.SndUna, l.Snapshot.SndNxt, l.Snapshot.WriteSeq = 4_100_000_001, 4_100_000_002, 4_100_000_003
		l.Snapshot.RcvNxt, l.Snapshot.CopiedSeq, l.Snapshot.TSRecent = 4_100_000_004, 4_100_000_004, 4_100_000_005
	}
	if b, err := json.Marshal(in.Basis(now)); err != nil || strings.Contains(string(b), "41000000") {
		t.Errorf("%v, %s", err, b)
	}
}

func TestBasisErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"app":"maybe"}`: `read application probe: "maybe" is not known`,
		`{"before":{"found":true,"state":"dreaming"}}`:    `read first look: "dreaming" is not known`,
		`{"before":{"found":false,"ended":"well"}}`:       `read first look: "well" is not known`,
		`{"probe":{"sent":1}}`:                            `read last look: it is missing beside the probe`,
		`{"probe":{"sent":1},"after":{"ended":"merged"}}`: `read last look: "merged" is not known`,
	} {
		var b Basis
		if err := json.Unmarshal([]byte(text), &b); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Input(); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
