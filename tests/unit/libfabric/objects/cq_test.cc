// Completion queues of every format: what of an entry each has.
#include <cstddef>

#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricQueueFormats, TellAsMuchAsEachHasRoomFor) {
  struct Format {
    fi_cq_format format;
    std::size_t bytes;
  };
  for (const auto& [format, bytes] : {Format{FI_CQ_FORMAT_CONTEXT, sizeof(fi_cq_entry)},
                                      Format{FI_CQ_FORMAT_MSG, sizeof(fi_cq_msg_entry)},
                                      Format{FI_CQ_FORMAT_DATA, sizeof(fi_cq_data_entry)},
                                      Format{FI_CQ_FORMAT_TAGGED, sizeof(fi_cq_tagged_entry)}}) {
    SCOPED_TRACE(format);
    Node sender;
    sender.enable();
    Node place;  // its domain, for an endpoint with a queue of that format
    fi_cq_attr attr{};
    attr.format = format;
    fid_cq* made;
    MUST(fi_cq_open(place.domain.get(), &attr, &made, nullptr));
    const Object<fid_cq> cq(made);
    fid_ep* endpoint;
    MUST(fi_endpoint(place.domain.get(), place.info.get(), &endpoint, nullptr));
    const Object<fid_ep> receiver(endpoint);
    MUST(fi_ep_bind(endpoint, &made->fid, FI_TRANSMIT | FI_RECV));
    MUST(fi_ep_bind(endpoint, &place.av->fid, 0));
    MUST(fi_enable(endpoint));
    char name[64];
    std::size_t length = sizeof name;
    MUST(fi_getname(&endpoint->fid, name, &length));
    const fi_addr_t to = sender.insert({name, name + length});

    char buffer[16] = {};
    int context = 0;
    ASSERT_EQ(fi_trecv(endpoint, buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, 0x77, 0, &context),
              0);
    ASSERT_EQ(
        sent([&] { return fi_tinjectdata(sender.ep.get(), "hello", 5, 0x1234, to, 0x77); }, sender),
        0);
    // An array of two, filled with what no field has, of which one entry may be written.
    std::vector<unsigned char> raw(2 * sizeof(fi_cq_tagged_entry), 0xee);
    ASSERT_TRUE(eventually([&] { return fi_cq_read(cq.get(), raw.data(), 2) == 1; }));
    fi_cq_tagged_entry entry{};
    std::memcpy(&entry, raw.data(), bytes);
    EXPECT_EQ(entry.op_context, &context);
    if (format != FI_CQ_FORMAT_CONTEXT) {
      EXPECT_EQ(entry.flags & (FI_RECV | FI_TAGGED), FI_RECV | FI_TAGGED);
      EXPECT_EQ(entry.len, 5u);
    }
    if (format == FI_CQ_FORMAT_DATA || format == FI_CQ_FORMAT_TAGGED) {
      EXPECT_EQ(entry.data, 0x1234u);
      EXPECT_NE(entry.flags & FI_REMOTE_CQ_DATA, 0u);
    }
    if (format == FI_CQ_FORMAT_TAGGED) {
      EXPECT_EQ(entry.tag, 0x77u);
    }
    EXPECT_EQ(raw[bytes], 0xee);
  }
}

}  // namespace
}  // namespace clan::test
