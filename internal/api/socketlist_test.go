// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
)

// portions remembers how much was written at once.
type portions struct {
	*httptest.ResponseRecorder
	largest int
}

func (p *portions) Write(b []byte) (int, error) {
	p.largest = max(p.largest, len(b))
	return p.ResponseRecorder.Write(b)
}

// However long the list is, it is encoded as one value would be, and never as a
// whole.
func TestSocketsInPortions(t *testing.T) {
	one := Socket{
		Local: "[fd00:20::1234:5678]:40122", Peer: "[fd00:20::8765:4321]:7100", Cookie: 1 << 60, Netns: 4026531840, UID: 4294967294,
		Policy: "buffer", Direction: "outbound", State: "established", BytesReceived: 1 << 60, BytesAcked: 1 << 60,
		IdleBoundMS: 15_000, InFlightBoundMS: 15_200,
	}
	for _, n := range []int{0, 1, rowsAtOnce - 1, rowsAtOnce, rowsAtOnce + 1, 10 * rowsAtOnce} {
		list := make([]Socket, n)
		for i := range list {
			list[i] = one
			list[i].Cookie = uint64(i + 1)
		}
		h := &admin{of: &fixed{sockets: list}, log: quiet()}
		w := &portions{ResponseRecorder: httptest.NewRecorder()}
		h.sockets(w, httptest.NewRequest(http.MethodGet, socketsPath, nil))
		want, err := json.Marshal(Sockets{Schema: Schema, Sockets: list})
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Body.String(); w.Code != 200 || got != string(want)+"\n" {
			t.Errorf("%d sockets: status %d, %d bytes, want the %d of one value", n, w.Code, len(got), len(want)+1)
		}
		if most := 1024 * rowsAtOnce; w.largest > most {
			t.Errorf("%d sockets: %d bytes at once, want %d at most", n, w.largest, most)
		}
	}
}
