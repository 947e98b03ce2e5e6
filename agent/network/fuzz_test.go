package network

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"
)

// FuzzNetworkConfiguration: what an installer left in the configuration
// directory is taken or refused.
func FuzzNetworkConfiguration(f *testing.F) {
	f.Add("10-a.conflist", []byte(`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}`))
	f.Add("10-a.conf", []byte(`{"cniVersion":"0.3.1","name":"a","type":"ptp"}`))
	f.Add("10-a.conflist", []byte(`{"cniVersion":"1.1.0","name":"a","disableGC":true,"plugins":[]}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		file := filepath.Join(t.TempDir(), "c"+filepath.Ext(filepath.Base(name)))
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Skip(err)
		}
		list, err := loadFile(file)
		if err == nil && (list == nil || len(list.Plugins) == 0 || list.Plugins[0].Network.Type == "") {
			t.Errorf("%q was taken as %+v", data, list)
		}
	})
}

// FuzzNetworkResult: a plugin's answer gives addresses or an error.
func FuzzNetworkResult(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.9.8.7/24","interface":1}]}`))
	f.Add([]byte(`{"cniVersion":"0.4.0","ips":[{"version":"6","address":"fd00::2/64"}]}`))
	f.Add([]byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.9.8.7/24"}}`))
	f.Add([]byte(`{"cniVersion":"1.0.0","ips":[{"address":"10.9.8.7/24","interface":-1},null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		res, err := create.CreateFromBytes(data)
		if err != nil {
			return
		}
		addrs, err := addrsOf(res)
		for _, a := range addrs {
			if err != nil || !a.IsValid() || a.Is4In6() {
				t.Errorf("%q gave %v, %v", data, addrs, err)
			}
		}
	})
}
