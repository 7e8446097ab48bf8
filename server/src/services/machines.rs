//! `tilesim.v1.Machines`.

use tilesim_proto::v1::{self, machines_server::Machines};
use tonic::{Request, Response, Status, async_trait};

use super::{Services, next_page, page};
use crate::{catalog::LoadedMachine, error::ServiceError, store::ObjectKind, wire};

#[async_trait]
impl Machines for Services {
    async fn put(
        &self,
        request: Request<v1::PutMachineRequest>,
    ) -> Result<Response<v1::PutMachineResponse>, Status> {
        let caller = self.caller(&request)?;
        let v1::PutMachineRequest { name, document } = request.into_inner();
        let name = wire::name(name, "name")?;
        let (machine, new) = self
            .app
            .catalog
            .put_machine(&caller.tenant, name, document)
            .await?;
        Ok(Response::new(v1::PutMachineResponse {
            machine: Some(wire::machine_info(&machine)),
            already_present: !new,
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListMachinesRequest>,
    ) -> Result<Response<v1::ListMachinesResponse>, Status> {
        let caller = self.caller(&request)?;
        let v1::ListMachinesRequest {
            page_size,
            page_token,
        } = request.into_inner();
        let (size, after) = page(page_size, &page_token)?;
        let presets = match after {
            None => wire::presets()?,
            Some(_) => Vec::new(),
        };
        let kind = ObjectKind::Machine;
        let mut entries = self
            .app
            .catalog
            .list(&caller.tenant, kind, after, size + 1)
            .await?;
        let next_page_token = next_page(&mut entries, size);
        Ok(Response::new(v1::ListMachinesResponse {
            presets,
            machines: entries.into_iter().map(wire::stored).collect(),
            next_page_token,
        }))
    }

    async fn describe(
        &self,
        request: Request<v1::DescribeMachineRequest>,
    ) -> Result<Response<v1::DescribeMachineResponse>, Status> {
        let caller = self.caller(&request)?;
        let reference = wire::machine(request.into_inner().machine, "machine")?;
        let loaded = self
            .app
            .catalog
            .machine(&caller.tenant, reference, "machine")
            .await?;
        Ok(Response::new(v1::DescribeMachineResponse {
            machine: Some(wire::machine_info(&loaded)),
            document: document(&loaded)?,
        }))
    }

    async fn check(
        &self,
        request: Request<v1::CheckMachineRequest>,
    ) -> Result<Response<v1::CheckMachineResponse>, Status> {
        let caller = self.caller(&request)?;
        let reference = wire::machine(request.into_inner().machine, "machine")?;
        let loaded = self
            .app
            .catalog
            .machine(&caller.tenant, reference, "machine")
            .await?;
        let machine = Some(wire::machine_info(&loaded));
        Ok(Response::new(v1::CheckMachineResponse { machine }))
    }
}

fn document(loaded: &LoadedMachine) -> Result<String, ServiceError> {
    Ok(loaded.machine.to_yaml()?)
}
