package launch

import (
	"encoding/json"
	"testing"
)

func TestFreeUsers(t *testing.T) {
	const unit = UsersPerPod
	for name, c := range map[string]struct {
		taken  []Users
		length uint32
		want   uint32 // 0: none is left
	}{
		"the first is the node's":      {nil, unit, unit},
		"a long one's too":             {nil, 4 * unit, 4 * unit},
		"behind others":                {[]Users{{2 * unit, unit}, {unit, unit}}, unit, 3 * unit},
		"between others":               {[]Users{{unit, unit}, {4 * unit, unit}}, 2 * unit, 2 * unit},
		"too short a gap":              {[]Users{{unit, unit}, {3 * unit, unit}}, 2 * unit, 4 * unit},
		"a short one behind a long":    {[]Users{{4 * unit, 4 * unit}, {unit, 3 * unit}}, unit, 8 * unit},
		"at multiples of its length":   {[]Users{{4 * unit, unit}}, 4 * unit, 8 * unit},
		"the last user cannot be used": {[]Users{{unit, 1<<32 - 2*unit}}, unit, 0},
		"the longest":                  {nil, 1 << 31, 0},
	} {
		got, err := FreeUsers(c.taken, c.length)
		if got.First != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: %+v, %v, want %d", name, got, err, c.want)
		}
	}
}

func TestUsersFile(t *testing.T) {
	file := func(ids string) string { return `{"uidMappings":[` + ids + `],"gidMappings":[` + ids + `]}` }
	for text, want := range map[string]Users{
		file(`{"hostId":131072,"containerId":0,"length":65536}`):  {131072, 65536},
		file(`{"hostId":131072,"containerId":0,"length":131072}`): {131072, 131072},
	} {
		var u Users
		if err := json.Unmarshal([]byte(text), &u); err != nil || u != want {
			t.Errorf("%s: %+v, %v", text, u, err)
		}
		if data, err := json.Marshal(want); err != nil || string(data) != text {
			t.Errorf("%s, %v, want %s", data, err, text)
		}
	}
	for _, bad := range []string{
		`{}`,
		file(`{"hostId":0,"containerId":0,"length":65536}`),
		file(`{"hostId":65536,"containerId":0,"length":65535}`),
		file(`{"hostId":65536,"containerId":0,"length":0}`),
		file(`{"hostId":65536,"containerId":1,"length":65536}`),
		file(`{"hostId":4294901760,"containerId":0,"length":65536}`),
	} {
		var u Users
		if err := json.Unmarshal([]byte(bad), &u); err == nil {
			t.Errorf("%s is %+v", bad, u)
		}
	}
}
