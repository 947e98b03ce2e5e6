package shutdown

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Times are when the last shutdown began and when its pods had ended; zero
// when there was none, or it is under way.
type Times struct {
	Start time.Time `json:"startTime,omitzero"`
	End   time.Time `json:"endTime,omitzero"`
}

// Load reads what a Manager kept in its StateFile.
func Load(file string) (Times, error) {
	var t Times
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	if err != nil {
		return Times{}, fmt.Errorf("times of the last shutdown: %w", err)
	}
	return t, nil
}

// keep writes the times. They are for metrics alone: a shutdown does not wait
// for want of them.
func (m *Manager) keep(t Times) {
	b, err := json.Marshal(t)
	if err == nil && m.StateFile != "" {
		err = os.WriteFile(m.StateFile, b, 0o600)
	}
	if err != nil {
		m.Log.Warn("the time of the shutdown is not kept", "err", err)
	}
}
