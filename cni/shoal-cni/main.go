// Command shoal-cni is the pod network of package cni as a CNI plugin, for
// nodes whose container runtime is not Shoal's own.
package main

import (
	"context"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/shoal-project/shoal/cni"
	"github.com/shoal-project/shoal/cni/netconf"
	"github.com/shoal-project/shoal/cni/podnet"
)

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status},
		version.VersionsStartingFrom("0.3.1"), "Shoal pod network")
}

func network(stdin []byte) (*cni.Network, *netconf.Conf, error) {
	conf, err := netconf.Parse(stdin)
	if err != nil {
		return nil, nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	n, err := cni.New(cni.Config{
		Bridge:       conf.Bridge,
		PodCIDRs:     conf.PodCIDRs,
		ClusterCIDRs: conf.ClusterCIDRs,
		ServiceCIDRs: conf.ServiceCIDRs,
		DNS:          conf.ClusterDNS,
		MTU:          conf.MTU,
		StateDir:     conf.StateDir,
		Table:        conf.Table,
	})
	if err != nil {
		return nil, nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	return n, conf, nil
}

// sandbox is the one that the runtime calls for.
func sandbox(args *skel.CmdArgs) podnet.Sandbox {
	return podnet.Sandbox{ID: args.ContainerID, IfName: args.IfName, NetNS: args.Netns}
}

func add(args *skel.CmdArgs) error {
	n, conf, err := network(args.StdinData)
	if err != nil {
		return err
	}
	s := sandbox(args)
	s.HostPorts, s.Bandwidth = conf.RuntimeConfig.PortMappings, conf.RuntimeConfig.Bandwidth
	for _, p := range s.HostPorts {
		if _, err := p.Addr(); err != nil {
			return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
		}
	}
	r, err := n.Add(context.Background(), s)
	if err != nil {
		return err
	}
	out := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: r.HostIf}, {Name: args.IfName, Mac: r.MAC, Sandbox: args.Netns}},
		DNS:        conf.DNS,
	}
	for i, ad := range r.Addrs {
		gateway := r.Gateways[i].AsSlice()
		everywhere := net.IPNet{IP: make(net.IP, len(gateway)), Mask: net.CIDRMask(0, ad.BitLen())}
		out.Routes = append(out.Routes, &types.Route{Dst: everywhere, GW: gateway})
		out.IPs = append(out.IPs, &types100.IPConfig{
			Interface: types100.Int(1), Gateway: gateway,
			Address: net.IPNet{IP: ad.AsSlice(), Mask: net.CIDRMask(ad.BitLen(), ad.BitLen())},
		})
	}
	return types.PrintResult(out, conf.CNIVersion)
}

func del(args *skel.CmdArgs) error {
	n, _, err := network(args.StdinData)
	if err != nil {
		return err
	}
	return n.Del(context.Background(), sandbox(args))
}

func check(args *skel.CmdArgs) error {
	n, _, err := network(args.StdinData)
	if err != nil {
		return err
	}
	return n.Check(context.Background(), sandbox(args))
}

func gc(args *skel.CmdArgs) error {
	n, conf, err := network(args.StdinData)
	if err != nil {
		return err
	}
	var valid []podnet.Sandbox
	for _, v := range conf.ValidAttachments {
		valid = append(valid, podnet.Sandbox{ID: v.ContainerID, IfName: v.IfName})
	}
	return n.GC(context.Background(), valid)
}

// status answers whether an ADD would find its bridge and tables.
func status(args *skel.CmdArgs) error {
	n, _, err := network(args.StdinData)
	if err != nil {
		return err
	}
	if err := n.Ensure(); err != nil {
		return types.NewError(50, "pod network cannot be set up", err.Error())
	}
	return nil
}
