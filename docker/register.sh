# Registers the node keys in /certificates with the SuperLink of the connection `tls`. Registered keys stay unchanged.
for key in /certificates/node*.pub; do
    said=$(flwr supernode register "$key" tls 2>&1) || case "$said" in
        *"already in use"*) ;;
        *) echo "$said" >&2; exit 1 ;;
    esac
    echo "$key is registered"
done
