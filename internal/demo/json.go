// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/sockhealth/sockhealth/report"
)

// schemaVersion changes when a field changes its meaning or goes.
const schemaVersion = 1

// The document. Names ending in _s are seconds; null says that it never came.
type (
	jsonResult struct {
		Schema    int            `json:"schema"`
		Held      bool           `json:"held"`
		Incidents []jsonIncident `json:"incidents"`
	}
	jsonIncident struct {
		Name    string    `json:"name"`
		Held    bool      `json:"held"`
		Watched seconds64 `json:"watched_s"`
		Slack   seconds64 `json:"slack_s"`
		Rows    []jsonRow `json:"rows"`
	}
	jsonRow struct {
		Case      string        `json:"case"`
		*jsonPool               // nil in other incidents
		Required  string        `json:"required"`
		Measured  string        `json:"measured"`
		Held      bool          `json:"held"`
		Late      seconds64     `json:"timers_late_s"`
		Figures   []jsonFigure  `json:"figures"`
		Requests  []jsonRequest `json:"requests"`
		Reports   []jsonReport  `json:"reports"`
	}
	jsonPool struct {
		First seconds64 `json:"first_request_s"`
		Gone  seconds64 `json:"stale_gone_s"`
	}
	jsonFigure struct {
		Name     string `json:"name"`
		Unit     string `json:"unit"`
		Min      number `json:"min"`
		Max      number `json:"max"`
		Measured number `json:"measured"`
		Held     bool   `json:"held"`
	}
	jsonRequest struct {
		Name   string    `json:"name,omitempty"`
		Sent   seconds64 `json:"sent_s"`
		Took   seconds64 `json:"took_s"`
		Err    string    `json:"error,omitempty"`
		Server string    `json:"server,omitempty"`
		Local  string    `json:"local,omitempty"`
	}
	jsonReport struct {
		Call    string          `json:"call,omitempty"`
		Sent    seconds64       `json:"sent_s"`
		Took    seconds64       `json:"took_s"`
		Err     string          `json:"error,omitempty"`
		Results []report.Result `json:"results"`
	}
)

// number is rounded to a thousandth; null where it is NaN or infinite.
type number float64

// MarshalJSON never fails.
func (n number) MarshalJSON() ([]byte, error) {
	if f := float64(n); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return json.Marshal(math.Round(f*1000) / 1000)
	}
	return []byte("null"), nil
}

// seconds64 is a duration; null where it is negative.
type seconds64 time.Duration

// MarshalJSON never fails.
func (s seconds64) MarshalJSON() ([]byte, error) {
	if s < 0 {
		return []byte("null"), nil
	}
	return number(time.Duration(s).Seconds()).MarshalJSON()
}

// WriteJSON writes the result as one JSON document. The error is w's.
func WriteJSON(w io.Writer, r *Result) error {
	doc := jsonResult{Schema: schemaVersion, Held: r.Held(), Incidents: []jsonIncident{}}
	for _, i := range r.Incidents {
		doc.Incidents = append(doc.Incidents, i.json())
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(doc); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

func (i *Incident) json() jsonIncident {
	doc := jsonIncident{
		Name: i.Name, Held: i.Held(), Watched: seconds64(i.Watched), Slack: seconds64(Slack), Rows: []jsonRow{},
	}
	for _, r := range i.Rows {
		doc.Rows = append(doc.Rows, r.json())
	}
	return doc
}

func (r *Row) json() jsonRow {
	doc := jsonRow{
		Case: r.Case, Required: r.Required, Measured: r.Measured, Held: r.Held(), Late: seconds64(r.Late),
		Figures: []jsonFigure{}, Requests: []jsonRequest{}, Reports: []jsonReport{},
	}
	if r.Pool != nil {
		doc.jsonPool = &jsonPool{First: seconds64(r.Pool.First), Gone: seconds64(r.Pool.Gone)}
	}
	for _, f := range r.Figures {
		doc.Figures = append(doc.Figures, jsonFigure{
			Name: f.Name, Unit: f.Unit, Min: number(f.Min), Max: number(f.Max),
			Measured: number(f.Measured), Held: f.Held(),
		})
	}
	for _, q := range r.Requests {
		doc.Requests = append(doc.Requests, jsonRequest{
			Name: q.Name, Sent: seconds64(q.Sent), Took: seconds64(q.Took), Err: q.Err, Server: q.Server, Local: q.Local,
		})
	}
	for _, p := range r.Reports {
		doc.Reports = append(doc.Reports, jsonReport{
			Call: p.Call, Sent: seconds64(p.Sent), Took: seconds64(p.Took), Err: p.Err,
			Results: append([]report.Result{}, p.Results...),
		})
	}
	return doc
}
