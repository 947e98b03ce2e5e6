// Package servicecidr looks after the ranges of cluster IPs (KEP-1880): a
// ServiceCIDR stays while Services need it, the default one always, and each
// cluster IP has one IPAddress of its Service.
package servicecidr
