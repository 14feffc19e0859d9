// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestJSON(t *testing.T) {
	for name, result := range results() {
		var b bytes.Buffer
		if err := WriteJSON(&b, result); err != nil {
			t.Fatal(err)
		}
		if !json.Valid(b.Bytes()) {
			t.Errorf("%s: not JSON", name)
		}
		golden(t, name+".json", b.Bytes())
	}
}

func TestJSONOfNothing(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, &Result{}); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"schema\": 1,\n  \"held\": false,\n  \"incidents\": []\n}\n"; b.String() != want {
		t.Errorf("%s", b.String())
	}
}
