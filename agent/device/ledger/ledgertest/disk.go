// Package ledgertest has a disk for the records of a ledger, for tests.
package ledgertest

import "encoding/json"

// Disk keeps records by key as the checkpoint does: what is read is another copy.
type Disk[S any] map[string][]byte

// All implements ledger.Records.
func (d Disk[S]) All() (map[string]*S, error) {
	out := map[string]*S{}
	for key, data := range d {
		out[key] = new(S)
		if err := json.Unmarshal(data, out[key]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// PutNow implements ledger.Records.
func (d Disk[S]) PutNow(key string, s *S) (err error) {
	d[key], err = json.Marshal(s)
	return err
}

// Delete implements ledger.Records.
func (d Disk[S]) Delete(key string) error {
	delete(d, key)
	return nil
}
